"""What a verifier has done, counted since its start, and the figures that are made from a part of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest

from dspine_cluster.core.sample_window import SampleWindow


@dataclass(frozen=True, slots=True)
class VerifierFigures:
    """Counts of rounds, as `observability/metrics.py` has them; differences and sums are again such figures."""

    rounds: int = 0
    drafted_rounds: int = 0
    committed_tokens: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    verified_per_position: tuple[int, ...] = ()
    """Proposals that were checked, by position in the block, from 1 on."""
    accepted_per_position: tuple[int, ...] = ()
    rounds_per_verify_length: tuple[int, ...] = ()
    """Drafted rounds, by verify length, from 0 on."""

    def since(self, earlier: VerifierFigures) -> VerifierFigures:
        """What has been added to `earlier`."""
        return _merged(self, earlier, -1)

    @classmethod
    def total(cls, figures: Iterable[VerifierFigures]) -> VerifierFigures:
        """The sum."""
        total = cls()
        for more in figures:
            total = _merged(total, more, 1)
        return total

    @property
    def acceptance_length(self) -> float | None:
        """Committed tokens a round; None without rounds."""
        return _ratio(self.committed_tokens, self.rounds)

    @property
    def verify_length(self) -> float | None:
        """Proposals checked a drafted round; None without."""
        return _ratio(sum(self.verified_per_position), self.drafted_rounds)

    @property
    def cached_ratio(self) -> float | None:
        """Part of the prompt tokens that was found in the cache; None without prompts."""
        return _ratio(self.cached_prompt_tokens, self.prompt_tokens)

    @property
    def acceptance_by_position(self) -> tuple[float | None, ...]:
        """Part of the checked proposals that was accepted, by position from 1 on; None where none was checked."""
        pairs = zip_longest(self.accepted_per_position, self.verified_per_position, fillvalue=0)
        return tuple(_ratio(accepted, verified) for accepted, verified in pairs)

    @property
    def verify_length_shares(self) -> tuple[float, ...]:
        """Part of the drafted rounds, by verify length from 0 on."""
        total = sum(self.rounds_per_verify_length)
        return tuple(count / total for count in self.rounds_per_verify_length) if total else ()


class RecentFigures:
    """Figures of the last `window_s` seconds, from counts that come now and then."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._samples = SampleWindow[tuple[float, VerifierFigures]]()

    def note(self, figures: VerifierFigures, now_s: float) -> None:
        """The counts have changed."""
        self._samples.add((now_s, figures))
        self._forget(now_s)

    @property
    def latest(self) -> VerifierFigures:
        """Counts since the verifier's start."""
        return self._samples.latest[1] if self._samples else VerifierFigures()

    def recent(self, now_s: float) -> tuple[VerifierFigures, float]:
        """What was done within the window, and the seconds that this took: fewer while nothing older is known."""
        self._forget(now_s)
        if not self._samples:
            return VerifierFigures(), self._window_s
        first_s, first = self._samples.first
        return self.latest.since(first), min(self._window_s, max(now_s - first_s, 1.0))

    def _forget(self, now_s: float) -> None:
        self._samples.forget(lambda sample: sample[0] <= now_s - self._window_s)


def _merged(one: VerifierFigures, other: VerifierFigures, sign: int) -> VerifierFigures:
    def add(ours: tuple[int, ...], theirs: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(a + sign * b for a, b in zip_longest(ours, theirs, fillvalue=0))

    return VerifierFigures(
        rounds=one.rounds + sign * other.rounds,
        drafted_rounds=one.drafted_rounds + sign * other.drafted_rounds,
        committed_tokens=one.committed_tokens + sign * other.committed_tokens,
        prompt_tokens=one.prompt_tokens + sign * other.prompt_tokens,
        cached_prompt_tokens=one.cached_prompt_tokens + sign * other.cached_prompt_tokens,
        verified_per_position=add(one.verified_per_position, other.verified_per_position),
        accepted_per_position=add(one.accepted_per_position, other.accepted_per_position),
        rounds_per_verify_length=add(one.rounds_per_verify_length, other.rounds_per_verify_length),
    )


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
