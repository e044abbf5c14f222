"""How likely proposals are accepted, learnt from those that were verified."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from dspine_cluster.types import MAX_PROPOSALS


@dataclass(frozen=True, slots=True)
class SurvivalSettings:
    """Priors and memory, in numbers of verified positions."""

    prior_trials: float = 8.0
    """Weight of the confidence itself, as the acceptance rate of its bin."""
    pooled_trials: float = 16.0
    """Weight of a bin's rate over all positions, as its rate at one."""
    memory_trials: float = 256.0
    """How many of its last outcomes a rate goes by."""


DEFAULT_SURVIVAL = SurvivalSettings()
_EDGES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995)
_NUM_BINS = len(_EDGES) + 1
_CENTRES = tuple((low + high) / 2 for low, high in zip((0.0, *_EDGES), (*_EDGES, 1.0), strict=True))
_REFRESH_BLOCKS = 64
_FIRST_RATE = 0.7
"""What is expected of a position before any was verified."""


class SurvivalModel:
    """P(proposal j is accepted | those before it were, its row's confidence, j).

    Confidences fall into bins; a bin's rate at one position leans on its rate over all positions, and that on the
    confidence itself. Position j counts only when it was verified and all before it were accepted.
    """

    def __init__(
        self, max_proposals: int = MAX_PROPOSALS, settings: SurvivalSettings = DEFAULT_SURVIVAL
    ) -> None:
        self.expected = [_FIRST_RATE] * max_proposals
        """P(accept j | those before it were accepted) whatever the confidence: what is left to expect of a row that
        must not be looked at."""
        self._settings = settings
        self._keep = 1.0 - 1.0 / settings.memory_trials
        self._pooled = [[0.0, 0.0] for _ in _CENTRES]  # [accepted, trials] by bin
        self._cells = [[0.0, 0.0] for _ in range(max_proposals * _NUM_BINS)]  # by position, bin
        self._rates: dict[int, float] = {}  # by cell, until something is noted
        self._notes_until_refresh = _REFRESH_BLOCKS

    def conditional(self, position: int, confidence: float) -> float:
        """P(accept | all before accepted) of the proposal at `position`, counted from 0."""
        index = bisect_right(_EDGES, confidence)
        cell = position * _NUM_BINS + index
        rate = self._rates.get(cell)
        if rate is None:
            rate = self._rates[cell] = self._rate(index, cell)
        return rate

    def curve(self, confidences: Sequence[float]) -> list[float]:
        """The survival of every position of a block: the product of the conditionals up to it."""
        survivals, survival = [], 1.0
        for position, confidence in enumerate(confidences):
            survival *= self.conditional(position, confidence)
            survivals.append(survival)
        return survivals

    def note(self, confidences: Sequence[float], num_verified: int, num_accepted: int) -> None:
        """The first `num_verified` proposals of a block were verified, and `num_accepted` of them accepted."""
        keep, all_pooled, cells = self._keep, self._pooled, self._cells
        for position in range(min(num_accepted + 1, num_verified)):
            index = bisect_right(_EDGES, confidences[position])
            value = 1.0 if position < num_accepted else 0.0
            pooled, cell = all_pooled[index], cells[position * _NUM_BINS + index]
            pooled[0] = pooled[0] * keep + value
            pooled[1] = pooled[1] * keep + 1.0
            cell[0] = cell[0] * keep + value
            cell[1] = cell[1] * keep + 1.0
        self._rates.clear()
        self._notes_until_refresh -= 1
        if self._notes_until_refresh == 0:
            self._refresh_expected()

    def _rate(self, index: int, cell: int) -> float:
        accepted, trials = self._pooled[index]
        prior, pooled = self._settings.prior_trials, self._settings.pooled_trials
        rate = (accepted + prior * _CENTRES[index]) / (trials + prior)
        accepted, trials = self._cells[cell]
        return (accepted + pooled * rate) / (trials + pooled)

    def _refresh_expected(self) -> None:
        self._notes_until_refresh = _REFRESH_BLOCKS
        pooled = self._settings.pooled_trials
        for position in range(len(self.expected)):
            cells = self._cells[position * _NUM_BINS : (position + 1) * _NUM_BINS]
            accepted, trials = (sum(column) for column in zip(*cells, strict=True))
            self.expected[position] = (accepted + pooled * _FIRST_RATE) / (trials + pooled)
