"""What is said in every round, of all its requests at once: a column of numbers for each thing said, none by request.

Arrays are checked as a whole, when a message is built, so also when it is received.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct

Int32Array: TypeAlias = npt.NDArray[np.int32]
Int64Array: TypeAlias = npt.NDArray[np.int64]
Float32Array: TypeAlias = npt.NDArray[np.float32]
Float64Array: TypeAlias = npt.NDArray[np.float64]

MAX_POSITION = 2**40 - 1
_MAX_WIRE_PROPOSALS = 4096
_MAX_UID = 2**63 - 1
_MAX_REQUESTS = 1 << 16
_DRAFT_BOUNDS = {
    "uids": (0, _MAX_UID),
    "rounds": (0, MAX_POSITION),
    "anchors": (0, 2**31 - 1),
    "positions": (0, MAX_POSITION),
    "num_proposals": (1, _MAX_WIRE_PROPOSALS),
    "output_indices": (0, MAX_POSITION),
    "has_seed": (0, 1),
    "seeds": (-(2**63), 2**63 - 1),
}
"""Least and largest number of each row of `Draft.numbers`, in order."""
_LEAST, _LARGEST = np.array(list(_DRAFT_BOUNDS.values()), np.int64).T[..., None]  # [8, 1] each


class Draft(Struct, frozen=True, forbid_unknown_fields=True, tag="draft", eq=False):
    """Draft a block for each of R requests, all of one round of the sender's batch."""

    numbers: Int64Array
    """int64 [8, R]: the rows are what the properties give, in their order."""
    temperatures: Float64Array
    """float64 [R]: 0 is greedy."""

    def __post_init__(self) -> None:
        shape = self.numbers.shape
        check(self.numbers.dtype == np.int64, "numbers must be int64")
        check(len(shape) == 2 and shape[0] == len(_DRAFT_BOUNDS), "numbers must be [8, R]")
        check(0 < shape[1] <= _MAX_REQUESTS, f"a draft must be of 1 to {_MAX_REQUESTS} requests")
        is_right = (self.numbers >= _LEAST) & (self.numbers <= _LARGEST)
        if not is_right.all():
            name = list(_DRAFT_BOUNDS)[int(np.argmin(is_right.all(1)))]
            least, largest = _DRAFT_BOUNDS[name]
            raise ValueError(f"{name} must lie in [{least}, {largest}]")
        check(self.temperatures.dtype == np.float64, "temperatures must be float64")
        check(self.temperatures.shape == shape[1:], "temperatures must be [R]")
        is_right = (self.temperatures >= 0.0) & (self.temperatures < math.inf)
        check(bool(is_right.all()), "temperatures must be finite and >= 0")

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

    @property
    def uids(self) -> Int64Array:
        return self._row(0)

    @property
    def rounds(self) -> Int64Array:
        """Number of each round; `Proposals` repeats it."""
        return self._row(1)

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

    def _row(self, number: int) -> Int64Array:
        row: Int64Array = self.numbers[number]
        return row


class Proposals(Struct, frozen=True, forbid_unknown_fields=True, tag="proposals", eq=False):
    """Drafted blocks of R requests: P proposals each, with the K numbers each was drawn from."""

    uids: Int64Array
    """int64 [R], not negative."""
    rounds: Int64Array
    """int64 [R], not negative."""
    tokens: Int32Array
    """int32 [R, P]."""
    candidates: Int32Array | None
    """int32 [R, P, K]; None when every request is greedy."""
    probs: Float32Array | None
    """float32 [R, P, K]: q, the proposal distribution over `candidates`; None with them."""
    confidence: Float32Array
    """float32 [R, P]: the largest untempered probability of the row that each proposal was drawn from, which is a
    function of the proposals before it."""
    draft_s: float
    """Seconds that the draft took, waiting not included."""

    def __post_init__(self) -> None:
        _check_rounds(self.uids, self.rounds)
        R = len(self.uids)
        check(self.tokens.dtype == np.int32, "tokens must be int32")
        check(self.confidence.dtype == np.float32, "confidence must be float32")
        check(self.tokens.ndim == 2 and self.tokens.shape[0] == R, "tokens must be [R, P]")
        check(self.confidence.shape == self.tokens.shape, "confidence must be [R, P]")
        check(_is_probability(self.confidence), "confidence must lie in [0, 1]")
        check((self.candidates is None) == (self.probs is None), "candidates and probs come together")
        if self.candidates is not None and self.probs is not None:
            check(self.candidates.dtype == np.int32, "candidates must be int32")
            check(self.probs.dtype == np.float32, "probs must be float32")
            check(
                self.candidates.ndim == 3 and self.candidates.shape[:2] == self.tokens.shape,
                "candidates must be [R, P, K]",
            )
            check(self.probs.shape == self.candidates.shape, "probs must be [R, P, K]")
            check(_is_probability(self.probs), "probs must lie in [0, 1]")
        check(math.isfinite(self.draft_s) and self.draft_s >= 0.0, "draft_s must be finite and >= 0")


class Busy(Struct, frozen=True, forbid_unknown_fields=True, tag="busy", eq=False):
    """The drafter is overloaded: no draft for these R requests in these rounds."""

    uids: Int64Array
    """int64 [R], not negative."""
    rounds: Int64Array
    """int64 [R], not negative."""

    def __post_init__(self) -> None:
        _check_rounds(self.uids, self.rounds)


def check(condition: bool, rule: str) -> None:
    """Raises ValueError with the rule that is broken."""
    if not condition:
        raise ValueError(rule)


def _check_rounds(uids: Int64Array, rounds: Int64Array) -> None:
    check(uids.dtype == rounds.dtype == np.int64, "uids and rounds must be int64")
    check(uids.ndim == 1 and len(uids) <= _MAX_REQUESTS, f"uids must be [R], of {_MAX_REQUESTS} at most")
    check(rounds.shape == uids.shape, "rounds must be as many as uids")
    if uids.size:
        is_right = uids.min() >= 0 and rounds.min() >= 0 and rounds.max() <= MAX_POSITION
        check(bool(is_right), "uids and rounds must not be negative, and rounds below 2**40")


def _is_probability(values: Float32Array) -> bool:
    # Not a number compares false whichever way, as do minima and maxima of such.
    return not values.size or bool(values.min() >= 0.0 and values.max() <= 1.0 + 1e-4)
