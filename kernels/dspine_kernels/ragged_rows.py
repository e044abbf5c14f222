"""Packed rows of some requests of a pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_LEAST_PADDING = 48
"""Rows of padding that take as long as the calls of a second part: measured on a CPU."""


def rows_of(lengths: npt.NDArray[np.int64], requests: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The rows of `requests`, one after the other, where all requests of `lengths` rows are packed."""
    own = lengths[requests]
    ends = own.cumsum()
    first = (lengths.cumsum() - lengths)[requests]
    rows: npt.NDArray[np.int64] = (first - ends + own).repeat(own)
    rows += np.arange(len(rows))
    return rows


def order_of(parts: Sequence[npt.NDArray[np.int64]], device: torch.device) -> Tensor:
    """int64 [num_rows]: where each packed row is among the rows of all `parts`, one after the other."""
    rows = np.concatenate(parts)
    order = np.empty_like(rows)
    order[rows] = np.arange(len(rows))
    return torch.from_numpy(order).to(device)


def split(
    is_plain: npt.NDArray[np.bool_], padding: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None:
    """The requests of a pass that have one row, and the others, where it pays to treat them apart: as one, each of them
    gets `padding` rows."""
    num_plain = int(is_plain.sum())
    if num_plain * padding < _LEAST_PADDING or num_plain == len(is_plain):
        return None
    return np.flatnonzero(is_plain), np.flatnonzero(~is_plain)
