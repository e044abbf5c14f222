"""How likely proposals are accepted, learnt from those that were verified."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from dspine_cluster.types import MAX_PROPOSALS

# Priors and memory, in numbers of verified positions.
_PRIOR_TRIALS = 8.0
"""Weight of the confidence itself, as the acceptance rate of its bin."""
_POOLED_TRIALS = 16.0
"""Weight of a bin's rate over all positions, as its rate at one."""
_MEMORY_TRIALS = 256.0
"""How many of its last outcomes a rate goes by."""
_KEEP = 1.0 - 1.0 / _MEMORY_TRIALS
CONFIDENCE_EDGES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995)
"""Where one bin of confidences ends and the next begins, which has the edge itself."""
NUM_BINS = len(CONFIDENCE_EDGES) + 1
_CENTRES = tuple(
    (low + high) / 2 for low, high in zip((0.0, *CONFIDENCE_EDGES), (*CONFIDENCE_EDGES, 1.0), strict=True)
)
_REFRESH_BLOCKS = 64
_FIRST_PASSES, _STALE_PASSES = 128, 4
"""After the first passes with blocks rates are brought up to date only once in so many."""
_FIRST_RATE = 0.7
"""What is expected of a position before any was verified."""


def cells_of(confidences: Sequence[float]) -> list[int]:
    """The cell of each proposal of a block: position * NUM_BINS + the bin of its confidence."""
    return [
        position * NUM_BINS + bisect_right(CONFIDENCE_EDGES, confidence)
        for position, confidence in enumerate(confidences)
    ]


class SurvivalModel:
    """P(proposal j is accepted | those before it were, its row's confidence, j).

    Confidences fall into bins; a bin's rate at one position leans on its rate over all positions, and that on the
    confidence itself. Position j counts only when it was verified and all before it were accepted. Blocks are given by
    the cells of their proposals, see `cells_of`.
    """

    def __init__(self, max_proposals: int = MAX_PROPOSALS) -> None:
        self.expected = [_FIRST_RATE] * max_proposals
        """P(accept j | those before it were accepted) whatever the confidence: what is left to expect of a row that
        must not be looked at."""
        self._max_proposals = max_proposals
        num_cells = max_proposals * NUM_BINS
        # What was accepted and tried, by bin and by cell; both fade.
        self._bin_accepted, self._bin_trials = [0.0] * NUM_BINS, [0.0] * NUM_BINS
        self._accepted, self._trials = [0.0] * num_cells, [0.0] * num_cells
        self._bins = [*range(NUM_BINS)] * max_proposals  # by cell
        self._rates: list[float] | None = None
        self._num_passes = 0  # with blocks
        self._is_stale = False
        self._age_passes = 0  # of rates
        self._notes_until_refresh = _REFRESH_BLOCKS

    @property
    def rates(self) -> Sequence[float]:
        """P(accept | all before accepted) by cell; what is noted shows within a few passes."""
        if self._rates is None:
            self._is_stale, self._age_passes = False, 0
            by_bin = [
                _POOLED_TRIALS * ((accepted + _PRIOR_TRIALS * centre) / (trials + _PRIOR_TRIALS))
                for accepted, trials, centre in zip(
                    self._bin_accepted, self._bin_trials, _CENTRES, strict=True
                )
            ] * self._max_proposals
            self._rates = [
                (accepted + leaning) / (trials + _POOLED_TRIALS)
                for accepted, trials, leaning in zip(self._accepted, self._trials, by_bin, strict=True)
            ]
        return self._rates

    def curve(self, cells: Sequence[int]) -> list[float]:
        """The survival of every position of a block: the product of the rates up to it."""
        return list(accumulate(map(self.rates.__getitem__, cells), mul))

    def note(self, blocks: Sequence[tuple[Sequence[int], int]]) -> None:
        """Learn from the verified blocks of a pass: the cells of the proposals of each up to the first rejected one and
        how many were accepted."""
        keep, bins = _KEEP, self._bins
        bin_accepted, bin_trials = self._bin_accepted, self._bin_trials
        cell_accepted, cell_trials = self._accepted, self._trials
        if blocks:
            self._is_stale = True
            self._num_passes += 1
        for cells, num_accepted in blocks:
            for position, cell in enumerate(cells):
                index = bins[cell]
                bin_trials[index] = bin_trials[index] * keep + 1.0
                cell_trials[cell] = cell_trials[cell] * keep + 1.0
                if position < num_accepted:
                    bin_accepted[index] = bin_accepted[index] * keep + 1.0
                    cell_accepted[cell] = cell_accepted[cell] * keep + 1.0
                else:
                    bin_accepted[index] *= keep
                    cell_accepted[cell] *= keep
            self._notes_until_refresh -= 1
            if self._notes_until_refresh == 0:
                self._refresh_expected()
        self._age_passes += 1
        if self._is_stale and (self._age_passes >= _STALE_PASSES or self._num_passes <= _FIRST_PASSES):
            self._rates = None

    def _refresh_expected(self) -> None:
        self._notes_until_refresh = _REFRESH_BLOCKS
        for position in range(self._max_proposals):
            start, end = position * NUM_BINS, (position + 1) * NUM_BINS
            accepted, trials = sum(self._accepted[start:end]), sum(self._trials[start:end])
            self.expected[position] = (accepted + _POOLED_TRIALS * _FIRST_RATE) / (trials + _POOLED_TRIALS)
