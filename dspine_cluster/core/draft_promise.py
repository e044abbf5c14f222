"""What the next blocks of requests promise: by their own last ones, corrected by what was accepted of these."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log

Curve = Sequence[float]
"""The survivals of a block's proposals."""

_MAX_CURVES = 32
_FIRST_CURVES, _EVERY_CURVES = 4, 8
"""Of each request its first curves and later ones from time to time stand for what requests are like, so that one that
goes on for long does not hide the others."""


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One request; counts fade with every verified block."""

    is_drafting: bool
    accepted: float = 0.0
    predicted: float = 0.0
    trials: float = 0.0
    drafted_round: int = 0
    switched_round: int = 0
    num_curves: int = 0
    curves: list[Curve] = field(default_factory=list)


@dataclass(slots=True)
class DraftPromises:
    """Remembers the last blocks of requests, and what requests are like."""

    fade: float
    """Of counts, with every verified block."""
    prior_trials: float
    """Verified positions until a request is judged by its own acceptance rather than by what its rows promised."""
    stale_rounds: int
    """Passes without a block after which what was drafted for a request says nothing about it any more."""
    recent: deque[Curve] = field(default_factory=lambda: deque(maxlen=_MAX_CURVES))
    """Of all requests."""

    def note(self, record: RequestRecord, num_trials: int, num_accepted: int, predicted: float) -> None:
        """Of a block that was verified: the positions up to the first rejection, how many of them were accepted, and
        how many were predicted to be."""
        record.accepted = record.accepted * self.fade + num_accepted
        record.predicted = record.predicted * self.fade + predicted
        record.trials = record.trials * self.fade + num_trials

    def note_curve(
        self, record: RequestRecord, curve: Curve, number_of_round: int, num_requests: int
    ) -> None:
        """The survivals of all that was drafted, verified or not. Few requests are remembered better."""
        if record.num_curves < _FIRST_CURVES or record.num_curves % _EVERY_CURVES == 0:
            self.recent.append(curve)
        record.num_curves += 1
        kept = max(1, _MAX_CURVES // num_requests)
        record.curves = [*record.curves[-kept + 1 :], curve] if kept > 1 else [curve]
        record.drafted_round = number_of_round

    def of(self, record: RequestRecord, number: int, number_of_round: int, num_requests: int) -> list[Curve]:
        """Survivals to expect of the next block of a request, the one with that `number`: of its last ones, or of
        anybody's if these are too old.

        Its own acceptance corrects what rows promise by a power: that which makes the mean promised acceptance of what
        was verified the observed one.
        """
        if not record.curves or number_of_round - record.drafted_round > self.stale_rounds:
            kept = max(1, len(self.recent) // num_requests)
            return [self.recent[(number * kept + i) % len(self.recent)] for i in range(kept)]
        if record.trials == 0.0:
            return record.curves
        predicted = record.predicted / record.trials
        observed = (record.accepted + self.prior_trials * predicted) / (record.trials + self.prior_trials)
        exponent = _log(observed) / _log(predicted)
        return [[survival**exponent for survival in curve] for curve in record.curves]


def _log(rate: float) -> float:
    return log(min(max(rate, 0.02), 0.98))
