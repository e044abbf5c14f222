"""Columns of numbers in messages, and what is checked of them: as a whole, with few passes over the numbers."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct

Int32Array: TypeAlias = npt.NDArray[np.int32]
Int64Array: TypeAlias = npt.NDArray[np.int64]
UInt8Array: TypeAlias = npt.NDArray[np.uint8]
Float32Array: TypeAlias = npt.NDArray[np.float32]
Float64Array: TypeAlias = npt.NDArray[np.float64]

MAX_POSITION = 2**40 - 1
MAX_UID = 2**63 - 1
MAX_REQUESTS = 1 << 16
_MOST_BITS = int(np.float32(1.0 + 1e-4).view(np.uint32))


class Bounds(NamedTuple):
    """What the rows of a table of numbers may hold."""

    names: tuple[str, ...]
    least: npt.NDArray[np.uint64]  # [num_rows, 1]: two's complement
    span: npt.NDArray[np.uint64]  # [num_rows, 1]: the largest less the least

    @classmethod
    def of(cls, **bounds: tuple[int, int]) -> Bounds:
        """By row, in order: the least and the largest number."""
        least, largest = np.array(list(bounds.values()), np.int64).T[..., None].view(np.uint64)
        return cls(tuple(bounds), least, largest - least)


class Said(Struct, frozen=True, forbid_unknown_fields=True):
    """What one side says to the other. It is checked where it is received, not where it is built."""

    def check(self) -> None:
        """Raises ValueError with the rule that the message breaks."""


def check(condition: bool, rule: str) -> None:
    """Raises ValueError with the rule that is broken."""
    if not condition:
        raise ValueError(rule)


def check_columns(numbers: Int64Array, bounds: Bounds, name: str) -> None:
    """Raises ValueError unless `numbers` are int64 [rows of `bounds`, R] within them, with R of 1 to `MAX_REQUESTS`."""
    check(numbers.dtype == np.int64, f"{name} must be int64")
    shape = numbers.shape
    check(len(shape) == 2 and shape[0] == len(bounds.names), f"{name} must be [{len(bounds.names)}, R]")
    check(0 < shape[1] <= MAX_REQUESTS, f"{name} must be of 1 to {MAX_REQUESTS} requests")
    # What is below the least wraps around to more than any span.
    is_right = numbers.view(np.uint64) - bounds.least <= bounds.span
    if np.count_nonzero(is_right) < is_right.size:
        row = int(np.argmin(is_right.all(1)))
        least = int(bounds.least.view(np.int64)[row, 0])
        largest = least + int(bounds.span[row, 0])
        raise ValueError(f"{bounds.names[row]} must lie in [{least}, {largest}]")


def are_probabilities(values: Float32Array) -> bool:
    """Whether all of them are in [0, 1], with a little room above for rounding."""
    # The bits of floats that are not negative are in the order of the floats, before those of all others.
    return not values.size or bool(values.view(np.uint32).max() <= _MOST_BITS)
