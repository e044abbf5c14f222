"""Columns of numbers in messages, and what is checked of them: as a whole, with few passes over the numbers."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct

Int8Array: TypeAlias = npt.NDArray[np.int8]
Int32Array: TypeAlias = npt.NDArray[np.int32]
Int64Array: TypeAlias = npt.NDArray[np.int64]
UInt8Array: TypeAlias = npt.NDArray[np.uint8]
Float32Array: TypeAlias = npt.NDArray[np.float32]
Float64Array: TypeAlias = npt.NDArray[np.float64]

INT8, INT32, INT64 = np.dtype(np.int8), np.dtype(np.int32), np.dtype(np.int64)
FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_UNSIGNED: dict[np.dtype[Any], np.dtype[Any]] = {INT8: np.dtype(np.uint8), INT32: np.dtype(np.uint32)}

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


def check_array(array: npt.NDArray[Any], dtype: np.dtype[Any], shape: tuple[int, ...], name: str) -> None:
    """Raises ValueError unless `array` has that dtype and shape."""
    if array.dtype != dtype or array.shape != shape:
        raise ValueError(f"{name} must be {dtype} {list(shape)}")


def check_columns(numbers: Int64Array, bounds: Bounds, name: str) -> None:
    """Raises ValueError unless `numbers` are int64 [rows of `bounds`, R] within them, with R of 1 to `MAX_REQUESTS`."""
    check_array(numbers, INT64, (len(bounds.names), *numbers.shape[1:2]), name)
    if not (numbers.ndim == 2 and 0 < numbers.shape[1] <= MAX_REQUESTS):
        raise ValueError(f"{name} must be of 1 to {MAX_REQUESTS} requests")
    # What is below the least wraps around to more than any span.
    is_right = numbers.view(np.uint64) - bounds.least <= bounds.span
    if np.count_nonzero(is_right) < is_right.size:
        row = int(np.argmin(is_right.all(1)))
        least = int(bounds.least.view(np.int64)[row, 0])
        largest = least + int(bounds.span[row, 0])
        raise ValueError(f"{bounds.names[row]} must lie in [{least}, {largest}]")


def are_ids(values: Int8Array | Int32Array, count: int) -> bool:
    """Whether all of them are in 0 .. `count` - 1."""
    # As unsigned numbers, negative ones are too large as well.
    return not values.size or bool(values.view(_UNSIGNED[values.dtype]).max() < count)


def are_probabilities(values: Float32Array) -> bool:
    """Whether all of them are in [0, 1], with a little room above for rounding."""
    # The bits of floats that are not negative are in the order of the floats, before those of all others.
    return not values.size or bool(values.view(np.uint32).max() <= _MOST_BITS)
