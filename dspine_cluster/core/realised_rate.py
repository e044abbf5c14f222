"""How much faster or slower rounds are than was predicted, with drafts and without."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

_HOPE = 4 / 3


@dataclass(frozen=True, slots=True)
class RealisedRateSettings:
    """How fast it follows."""

    memory_rounds: float = 128.0
    other_memory_rounds: float = 1024.0
    """The same for rounds of other kinds, so that what is not done any more is forgotten at last."""
    prior_rounds: float = 4.0
    """Rounds of a kind until it is judged by them rather than by those of all kinds."""
    max_ratio: float = 3.0
    """A round counts as no more than this many times longer or shorter than predicted: a stall says nothing of the
    next."""


DEFAULT_REALISED_RATE = RealisedRateSettings()


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


@dataclass(frozen=True, slots=True)
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
    """Of rounds of one kind; they fade."""

    num_rounds: float = 0.0
    elapsed_s: float = 0.0
    worth_s: float = 0.0
    """In which time the same tokens were predicted to come."""

    def fade(self, factor: float) -> None:
        self.num_rounds *= factor
        self.elapsed_s *= factor
        self.worth_s *= factor


class RealisedRate:
    """Compares the time of rounds with predictions. Whatever all rounds of a kind have in common, such as what drafts
    take from the passes that run beside them, then counts when kinds are compared.

    Acceptance is not looked at: it is learnt elsewhere.
    """

    def __init__(self, settings: RealisedRateSettings = DEFAULT_REALISED_RATE) -> None:
        self._settings = settings
        self._fade = 1.0 - 1.0 / settings.memory_rounds
        self._other_fade = 1.0 - 1.0 / settings.other_memory_rounds
        self._sums = {kind: _Sums() for kind in RoundKind}
        self._num_tokens = 0.0  # of the round that goes on
        self._elapsed_s = 0.0
        self._is_spoilt = False

    def note_pass(self, num_tokens: float, elapsed_s: float | None) -> None:
        """A pass was expected to commit so many tokens, and ended `elapsed_s` after the one before it; None spoils the
        round: it holds what others do not."""
        self._num_tokens += num_tokens
        self._elapsed_s += elapsed_s or 0.0
        self._is_spoilt = self._is_spoilt or elapsed_s is None

    def end_round(self, kind: RoundKind, expected: ExpectedRound) -> None:
        """The round has ended with the pass that was noted last."""
        if not self._is_spoilt:
            for other, sums in self._sums.items():
                sums.fade(self._fade if other is kind else self._other_fade)
            sums = self._sums[kind]
            sums.num_rounds += 1.0
            worth_s = expected.seconds * self._num_tokens / (expected.pass_tokens + expected.gap_tokens)
            max_ratio = self._settings.max_ratio
            sums.elapsed_s += min(max(self._elapsed_s, worth_s / max_ratio), worth_s * max_ratio)
            sums.worth_s += worth_s
        self._num_tokens = self._elapsed_s = 0.0
        self._is_spoilt = False

    def ratio(self, kind: RoundKind) -> float:
        """The rate that came true over the one that was predicted, for rounds of a kind. Few rounds of a kind say as
        much as those of all kinds."""
        elapsed_s = sum(sums.elapsed_s for sums in self._sums.values())
        worth_s = sum(sums.worth_s for sums in self._sums.values())
        return self._shrunk(kind, worth_s / elapsed_s if elapsed_s else 1.0)

    def hope(self, kind: RoundKind) -> float:
        """The same if what is not known yet is better than that."""
        return self._shrunk(kind, _HOPE * max(1.0, self.ratio(kind)))

    def _shrunk(self, kind: RoundKind, prior: float) -> float:
        own = self._sums[kind]
        if own.num_rounds == 0.0:
            return prior
        weight = own.num_rounds / (own.num_rounds + self._settings.prior_rounds)
        return prior + weight * (own.worth_s / own.elapsed_s - prior)
