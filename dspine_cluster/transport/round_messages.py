"""What is said in every round, of all its requests at once: a column of numbers for each thing said, none by request.

Arrays are checked as a whole, when a message is received.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dspine_cluster.core.survival import NUM_BINS
from dspine_cluster.transport.columns import (
    FLOAT32,
    FLOAT64,
    INT8,
    INT32,
    MAX_POSITION,
    MAX_UID,
    Bounds,
    Float32Array,
    Float64Array,
    Int8Array,
    Int32Array,
    Int64Array,
    Said,
    are_ids,
    are_probabilities,
    check,
    check_array,
    check_columns,
)

_MAX_WIRE_PROPOSALS = 4096
_DRAFT_BOUNDS = Bounds.of(
    uids=(0, MAX_UID),
    rounds=(0, MAX_POSITION),
    anchors=(0, 2**31 - 1),
    positions=(0, MAX_POSITION),
    num_proposals=(1, _MAX_WIRE_PROPOSALS),
    output_indices=(0, MAX_POSITION),
    has_seed=(0, 1),
    seeds=(-(2**63), 2**63 - 1),
)
"""Of the rows of `Draft.numbers`, in order."""
_PROPOSALS_BOUNDS = Bounds.of(uids=(0, MAX_UID), rounds=(0, MAX_POSITION), is_sampled=(0, 1))
"""Of the rows of `Proposals.numbers`, in order."""
_BUSY_BOUNDS = Bounds.of(uids=(0, MAX_UID), rounds=(0, MAX_POSITION))
"""Of the rows of `Busy.numbers`, in order."""
NUM_DRAFT_COLUMNS = len(_DRAFT_BOUNDS.names)


class _Round(Said, frozen=True, forbid_unknown_fields=True):
    """What is said of each of R requests in numbers: a row of `numbers` for each thing."""

    numbers: Int64Array
    """int64 [num_rows, R]: the rows are what the properties give, in their order."""

    @property
    def uids(self) -> Int64Array:
        return self._row(0)

    @property
    def rounds(self) -> Int64Array:
        """Number of each round; `Proposals` repeats that of `Draft`."""
        return self._row(1)

    def _row(self, number: int) -> Int64Array:
        row: Int64Array = self.numbers[number]
        return row


class Draft(_Round, frozen=True, forbid_unknown_fields=True, tag="draft", eq=False):
    """Draft a block for each of R requests, all of one round of the sender's batch."""

    temperatures: Float64Array
    """float64 [R]: 0 is greedy."""

    def check(self) -> None:
        check_columns(self.numbers, _DRAFT_BOUNDS, "numbers")
        check_array(self.temperatures, FLOAT64, self.numbers.shape[1:], "temperatures")
        is_right = (self.temperatures >= 0.0) & (self.temperatures < math.inf)
        check(np.count_nonzero(is_right) == len(is_right), "temperatures must be finite and >= 0")

    @classmethod
    def of(
        cls,
        *,
        uids: Sequence[int] | Int64Array,
        rounds: Sequence[int] | Int64Array,
        anchors: Sequence[int] | Int64Array,
        positions: Sequence[int] | Int64Array,
        num_proposals: Sequence[int] | Int64Array,
        output_indices: Sequence[int] | Int64Array,
        seeds: Sequence[int | None],
        temperatures: Sequence[float] | Float64Array,
    ) -> Draft:
        """From columns; see the properties of these names. A seed may be None."""
        has_seed = [seed is not None for seed in seeds]
        filled = [seed or 0 for seed in seeds]
        columns = (uids, rounds, anchors, positions, num_proposals, output_indices, has_seed, filled)
        return cls(np.array(columns, np.int64), np.asarray(temperatures, np.float64))

    def __len__(self) -> int:
        return len(self.temperatures)

    def part(self, requests: slice | npt.NDArray[np.bool_]) -> Draft:
        """Some of the requests."""
        return Draft(self.numbers[:, requests], self.temperatures[requests])

    @property
    def anchors(self) -> Int64Array:
        """Token ids."""
        return self._row(2)

    @property
    def positions(self) -> Int64Array:
        """Absolute position n of each anchor; the context is positions 0 .. n - 1, or a suffix of them."""
        return self._row(3)

    @property
    def num_proposals(self) -> Int64Array:
        """How many are wanted for each request: at least one; more may come."""
        return self._row(4)

    @property
    def output_indices(self) -> Int64Array:
        """Output position of each first proposal; with a seed it fixes the noise."""
        return self._row(5)

    @property
    def has_seed(self) -> Int64Array:
        """1 where `seeds` counts, else 0."""
        return self._row(6)

    @property
    def seeds(self) -> Int64Array:
        return self._row(7)


class Proposals(_Round, frozen=True, forbid_unknown_fields=True, tag="proposals", eq=False):
    """Drafted blocks of R requests: P proposals each. For the S of them that sample without a seed there are the K
    numbers that each proposal was drawn from; the others do not need them."""

    tokens: Int32Array
    """int32 [R, P]."""
    candidates: Int32Array
    """int32 [S, P, K]: of the requests that are sampled, in order. The first of each K is the proposal."""
    probs: Float32Array
    """float32 [S, P, K]: q, the proposal distribution over `candidates`."""
    bins: Int8Array
    """int8 [R, P]: of the confidence, which is the largest untempered probability of the row that each proposal was
    drawn from: a function of the proposals before it. See `confidence.bins_of`."""
    draft_s: float
    """Seconds that the draft took, waiting not included."""

    def check(self) -> None:
        check_columns(self.numbers, _PROPOSALS_BOUNDS, "numbers")
        check(self.tokens.ndim == 2, "tokens must be [R, P]")
        check(self.candidates.ndim == 3, "candidates must be [S, P, K]")
        R, P = self.numbers.shape[1], self.tokens.shape[1]
        check_array(self.tokens, INT32, (R, P), "tokens")
        check_array(self.bins, INT8, (R, P), "bins")
        of_sampled = (int(np.count_nonzero(self.is_sampled)), P, self.candidates.shape[2])
        check_array(self.candidates, INT32, of_sampled, "candidates")
        check_array(self.probs, FLOAT32, of_sampled, "probs")
        check(are_ids(self.bins, NUM_BINS), f"bins must lie in [0, {NUM_BINS - 1}]")
        check(are_probabilities(self.probs), "probs must lie in [0, 1]")
        check(math.isfinite(self.draft_s) and self.draft_s >= 0.0, "draft_s must be finite and >= 0")

    @property
    def is_sampled(self) -> Int64Array:
        """1 where distributions are told, else 0."""
        return self._row(2)


class Busy(_Round, frozen=True, forbid_unknown_fields=True, tag="busy", eq=False):
    """The drafter is overloaded: no draft for these R requests in these rounds."""

    def check(self) -> None:
        check_columns(self.numbers, _BUSY_BOUNDS, "numbers")
