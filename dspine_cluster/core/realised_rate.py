"""How much faster or slower rounds are than was predicted, with drafts and without."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

_HOPE = 4 / 3
"""How much more than predicted a kind of round may give while little is known of it."""
_FADE = 1.0 - 1.0 / 128.0
"""Of what is known, with every round."""
_OTHER_FADE = 1.0 - 1.0 / 1024.0
"""The same with rounds of other kinds, so that what is not done any more is forgotten at last."""
_PRIOR_ROUNDS = 4.0
"""Rounds of a kind until it is judged by them rather than by those of all kinds, and the same for rounds of about as
many requests."""
_MAX_RATIO = 3.0
"""A round counts as no more than this many times longer or shorter than predicted: a stall says nothing of the next."""


class RoundKind(Enum):
    """Who is drafted for."""

    NONE = "none"
    SOME = "some"
    """The others' passes run beside the drafts."""
    ALL = "all"

    @staticmethod
    def of(num_drafted: int, num_requests: int) -> RoundKind:
        if num_drafted == 0:
            return RoundKind.NONE
        return RoundKind.ALL if num_drafted == num_requests else RoundKind.SOME


@dataclass(slots=True)
class ExpectedRound:
    """What a round was predicted to be."""

    pass_tokens: float
    """Committed by the pass that ends it."""
    gap_tokens: float
    """Committed by passes before that, while its drafts were made."""
    seconds: float
    """From the end of the round before."""


@dataclass(slots=True)
class _Sums:
    """Of rounds; they fade."""

    num_rounds: float = 0.0
    elapsed_s: float = 0.0
    worth_s: float = 0.0
    """In which time the same tokens were predicted to come."""
    faded_until: int = 0
    """The round, of any kind, up to which others have faded it."""

    def fade(self, factor: float) -> None:
        self.num_rounds *= factor
        self.elapsed_s *= factor
        self.worth_s *= factor


class RealisedRate:
    """Compares the time of rounds with predictions. Whatever all rounds of a kind have in common, such as what drafts
    take from the passes that run beside them, then counts when kinds are compared, where as many requests run as did.

    Acceptance is not looked at: it is learnt elsewhere.
    """

    def __init__(self) -> None:
        self._sums = defaultdict[tuple[RoundKind, int], _Sums](_Sums)
        """By kind and scale of the number of requests; see `_faded`."""
        self._round = 0
        self._num_tokens = 0.0  # of the round that goes on
        self._elapsed_s = 0.0
        self._is_spoilt = False

    def note_pass(self, num_tokens: float, elapsed_s: float | None) -> None:
        """A pass was expected to commit so many tokens, and ended `elapsed_s` after the one before it; None spoils the
        round: it holds what others do not."""
        self._num_tokens += num_tokens
        self._elapsed_s += elapsed_s or 0.0
        self._is_spoilt = self._is_spoilt or elapsed_s is None

    def end_round(self, kind: RoundKind, num_requests: int, expected: ExpectedRound) -> None:
        """The round has ended with the pass that was noted last, while that many requests ran."""
        if not self._is_spoilt:
            sums = self._faded(self._sums[kind, _scale(num_requests)])
            self._round += 1
            sums.fade(_FADE)
            sums.faded_until = self._round
            sums.num_rounds += 1.0
            worth_s = expected.seconds * self._num_tokens / (expected.pass_tokens + expected.gap_tokens)
            sums.elapsed_s += min(max(self._elapsed_s, worth_s / _MAX_RATIO), worth_s * _MAX_RATIO)
            sums.worth_s += worth_s
        self._num_tokens = self._elapsed_s = 0.0
        self._is_spoilt = False

    def skip_round(self) -> None:
        """A round like those before it has ended, and was not looked at."""
        self._round += 1

    def ratio(self, kind: RoundKind, num_requests: int) -> float:
        """The rate that came true over the one that was predicted, for rounds of a kind while so many requests run. Few
        rounds of these say as much as those of all numbers, and few of a kind as those of all kinds."""
        total = _total(map(self._faded, self._sums.values()))
        return self._shrunk(kind, num_requests, total.worth_s / total.elapsed_s if total.elapsed_s else 1.0)

    def hope(self, kind: RoundKind, num_requests: int) -> float:
        """The same if what is not known yet is better than that."""
        return self._shrunk(kind, num_requests, _HOPE * max(1.0, self.ratio(kind, num_requests)))

    def _shrunk(self, kind: RoundKind, num_requests: int, prior: float) -> float:
        own_key = kind, _scale(num_requests)
        faded = {key: self._faded(sums) for key, sums in self._sums.items() if key[0] is kind}
        own = faded.pop(own_key, _Sums())
        for sums in (_total(faded.values()), own):
            if sums.elapsed_s:  # what fades in great strides reaches 0 before the number of its rounds does
                weight = sums.num_rounds / (sums.num_rounds + _PRIOR_ROUNDS)
                prior += weight * (sums.worth_s / sums.elapsed_s - prior)
        return prior

    def _faded(self, sums: _Sums) -> _Sums:
        """Sums, with what the rounds of other kinds since then took of them."""
        sums.fade(_OTHER_FADE ** (self._round - sums.faded_until))
        sums.faded_until = self._round
        return sums


def _scale(num_requests: int) -> int:
    """1, 2, 3 to 4, 5 to 8, ... requests."""
    return max(0, num_requests - 1).bit_length()


def _total(all_sums: Iterable[_Sums]) -> _Sums:
    total = _Sums()
    for sums in all_sums:
        total.num_rounds += sums.num_rounds
        total.elapsed_s += sums.elapsed_s
        total.worth_s += sums.worth_s
    return total
