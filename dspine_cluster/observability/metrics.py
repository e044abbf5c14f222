"""What a verifier loop counts. Names and units are those of the exported Prometheus metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from dspine_cluster.observability.catalogue import LENGTHS, ROUND_SECONDS
from dspine_cluster.observability.histogram import Histogram, histogram_of

Round: TypeAlias = tuple[int, int, int, int]
"""Of one request: proposed, verified, accepted and committed tokens. Accepted are those that became output."""

_PROPOSED, _VERIFIED, _ACCEPTED, _COMMITTED = range(4)
"""Their places in a `Round`."""
_FIGURES_OF_ROUNDS = (
    "rounds_total",
    "drafted_rounds_total",
    "proposed_tokens_total",
    "verified_tokens_total",
    "accepted_tokens_total",
    "committed_tokens_total",
)


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

    prompt_tokens_total: int = 0
    cached_prompt_tokens_total: int = 0
    """Of these, those whose prefix was found in the cache when the request was admitted."""
    draft_queue_seconds_total: float = 0.0
    """What requests waited for drafts beyond the time that these took, summed over requests."""
    finished_requests_total: int = 0
    preemptions_total: int = 0
    evicted_pages_total: int = 0
    evicted_checkpoints_total: int = 0
    running_requests: int = 0
    waiting_requests: int = 0
    page_usage_ratio: float = 0.0
    """Pages of running requests; cached pages that none of them holds count as free."""
    cached_pages: int = 0
    checkpoints: int = 0
    _rounds: Counter[Round] = field(default_factory=Counter)
    """How often a round was like that: cheaper to count than each figure of every round."""
    _round_seconds: dict[RoundPhase, Histogram] = field(
        default_factory=lambda: {phase: Histogram(ROUND_SECONDS) for phase in RoundPhase}
    )

    @property
    def rounds_total(self) -> int:
        """Rounds of single requests, drafted or plain."""
        return sum(dict(self._rounds).values())

    @property
    def drafted_rounds_total(self) -> int:
        """Of these, those with proposals at hand, verified or not."""
        return self.verify_length_total.total()

    @property
    def proposed_tokens_total(self) -> int:
        return self._tokens(_PROPOSED)

    @property
    def verified_tokens_total(self) -> int:
        return self._tokens(_VERIFIED)

    @property
    def accepted_tokens_total(self) -> int:
        return self._tokens(_ACCEPTED)

    @property
    def committed_tokens_total(self) -> int:
        """Tokens committed by rounds; the token that prefill yields belongs to none."""
        return self._tokens(_COMMITTED)

    @property
    def verify_length_total(self) -> Counter[int]:
        """Drafted rounds by verify length."""
        return self._rounds_by(_VERIFIED, is_drafted=True)

    @property
    def verified_tokens_per_position_total(self) -> Counter[int]:
        """By position in the block, from 1."""
        return _by_position(self.verify_length_total)

    @property
    def accepted_tokens_per_position_total(self) -> Counter[int]:
        """By position in the block, from 1."""
        return _by_position(self._rounds_by(_ACCEPTED))

    def note_rounds(self, rounds: Iterable[Round]) -> None:
        """Count the rounds of a pass."""
        self._rounds.update(rounds)

    def note_phase(self, phase: RoundPhase, seconds: float) -> None:
        """A part of a round took so long."""
        self._round_seconds[phase].note(seconds)

    def snapshot(self) -> dict[str, float]:
        """Every figure by name; those that are counted apart carry by what in braces."""
        fields = [name for name in self.__dataclass_fields__ if not name.startswith("_")]
        figures: dict[str, float] = {name: getattr(self, name) for name in (*_FIGURES_OF_ROUNDS, *fields)}
        for name in ("verified_tokens_per_position_total", "accepted_tokens_per_position_total"):
            figures |= {f"{name}{{position={key}}}": count for key, count in getattr(self, name).items()}
        for name, rounds, bounds in (
            ("acceptance_length", self._rounds_by(_COMMITTED), LENGTHS[1:]),
            ("verify_length", self.verify_length_total, LENGTHS[:-1]),
        ):
            figures |= histogram_of(rounds, bounds).figures(name)
        for phase, seconds in self._round_seconds.items():
            figures |= seconds.figures("round_seconds", {"phase": phase})
        return figures

    def _rounds_by(self, column: int, *, is_drafted: bool = False) -> Counter[int]:
        """How many rounds there are by one of their figures, perhaps of those alone that had proposals."""
        rounds: Counter[int] = Counter()
        for own, count in dict(self._rounds).items():  # copied in one go: the loop's thread counts meanwhile
            if own[_PROPOSED] or not is_drafted:
                rounds[own[column]] += count
        return rounds

    def _tokens(self, column: int) -> int:
        return sum(tokens * count for tokens, count in self._rounds_by(column).items())


def _by_position(rounds: Counter[int]) -> Counter[int]:
    """How many rounds reached each position."""
    reached: Counter[int] = Counter()
    for position in range(max(rounds, default=0), 0, -1):
        reached[position] = reached[position + 1] + rounds[position]
    return Counter({position: reached[position] for position in sorted(reached) if reached[position]})
