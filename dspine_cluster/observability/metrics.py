"""What a verifier loop counts. Names and units are those of the exported Prometheus metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from dspine_cluster.observability.catalogue import LENGTHS, ROUND_SECONDS
from dspine_cluster.observability.histogram import Histogram, histogram_of


class RoundPhase(StrEnum):
    """A part of a round, over all requests of a pass."""

    DRAFT = "draft"
    """From asking for drafts to the arrival of those that were waited for."""
    PLAN = "plan"
    VERIFY = "verify"
    """The pass through the target, acceptance included."""
    COMMIT = "commit"


@dataclass(slots=True)
class VerifierMetrics:
    """Written by the loop's thread alone; others read `snapshot`. Counters only grow."""

    rounds_total: int = 0
    """Rounds of single requests, drafted or plain."""
    drafted_rounds_total: int = 0
    """Of these, those with proposals at hand, verified or not."""
    proposed_tokens_total: int = 0
    verified_tokens_total: int = 0
    accepted_tokens_total: int = 0
    committed_tokens_total: int = 0
    """Tokens committed by rounds; the token that prefill yields belongs to none."""
    prompt_tokens_total: int = 0
    cached_prompt_tokens_total: int = 0
    """Of these, those whose prefix was found in the cache when the request was admitted."""
    draft_queue_seconds_total: float = 0.0
    """What requests waited for drafts beyond the time that these took, summed over requests."""
    finished_requests_total: int = 0
    preemptions_total: int = 0
    evicted_pages_total: int = 0
    evicted_checkpoints_total: int = 0
    verify_length_total: Counter[int] = field(default_factory=Counter)
    """Drafted rounds by verify length."""
    running_requests: int = 0
    waiting_requests: int = 0
    page_usage_ratio: float = 0.0
    """Pages of running requests; cached pages that none of them holds count as free."""
    cached_pages: int = 0
    checkpoints: int = 0
    _accepted_total: Counter[int] = field(default_factory=Counter)
    """Rounds by accepted tokens: cheaper to count than every position of every round."""
    _committed_total: Counter[int] = field(default_factory=Counter)
    """Rounds by committed tokens."""
    _round_seconds: dict[RoundPhase, Histogram] = field(
        default_factory=lambda: {phase: Histogram(ROUND_SECONDS) for phase in RoundPhase}
    )

    @property
    def verified_tokens_per_position_total(self) -> Counter[int]:
        """By position in the block, from 1."""
        return _by_position(self.verify_length_total)

    @property
    def accepted_tokens_per_position_total(self) -> Counter[int]:
        """By position in the block, from 1."""
        return _by_position(self._accepted_total)

    def note_rounds(
        self,
        *,
        proposed: Sequence[int],
        verified: Sequence[int],
        accepted: Sequence[int],
        committed: Sequence[int],
    ) -> None:
        """Count the rounds of a pass: the tokens of each request. Accepted are those that became output."""
        if not proposed:
            return
        lengths = [length for length, num_proposed in zip(verified, proposed, strict=True) if num_proposed]
        self.rounds_total += len(proposed)
        self.drafted_rounds_total += len(lengths)
        self.verify_length_total.update(lengths)
        self.proposed_tokens_total += sum(proposed)
        self.verified_tokens_total += sum(verified)
        self.accepted_tokens_total += sum(accepted)
        self.committed_tokens_total += sum(committed)
        self._accepted_total.update(accepted)
        self._committed_total.update(committed)

    def note_phase(self, phase: RoundPhase, seconds: float) -> None:
        """A part of a round took so long."""
        self._round_seconds[phase].note(seconds)

    def snapshot(self) -> dict[str, float]:
        """Every figure by name; those that are counted apart carry by what in braces."""
        figures: dict[str, float] = {
            name: getattr(self, name)
            for name in self.__dataclass_fields__
            if not name.startswith("_") and name != "verify_length_total"
        }
        for name in ("verified_tokens_per_position_total", "accepted_tokens_per_position_total"):
            figures |= {f"{name}{{position={key}}}": count for key, count in getattr(self, name).items()}
        # Copied in one go: the loop's thread may count something new meanwhile.
        for name, rounds, bounds in (
            ("acceptance_length", dict(self._committed_total), LENGTHS[1:]),
            ("verify_length", dict(self.verify_length_total), LENGTHS[:-1]),
        ):
            figures |= histogram_of(rounds, bounds).figures(name)
        for phase, seconds in self._round_seconds.items():
            figures |= seconds.figures("round_seconds", {"phase": phase})
        return figures


def _by_position(rounds_by_length: Counter[int]) -> Counter[int]:
    """How many rounds reached each position."""
    rounds = dict(rounds_by_length)  # copied in one go: the loop's thread may count a new length meanwhile
    reached: Counter[int] = Counter()
    for position in range(max(rounds, default=0), 0, -1):
        reached[position] = reached[position + 1] + rounds.get(position, 0)
    return Counter({position: reached[position] for position in sorted(reached) if reached[position]})
