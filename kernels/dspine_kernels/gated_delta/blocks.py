"""The plan of a pass over blocks that the Triton kernels read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

BLOCK_TOKENS = 16
"""The most tokens of a block, and one more than the most that are pending."""


@dataclass(frozen=True, slots=True, eq=False)
class BlockPlan:
    """Where each request's rows and states are.

    Only shapes, `rows` and `is_plain` decide a launch, so the tensors may be buffers that later passes refill: a
    request without rows does nothing.
    """

    row_starts: Tensor  # int32 [B + 1]: rows of request b are row_starts[b] .. row_starts[b + 1] - 1
    slots: Tensor  # int32 [B], all different
    num_pending: Tensor  # int32 [B], 0 .. 15
    rows: slice
    """The rows of the pass that are wanted back; those that no request owns hold anything."""
    is_plain: bool
    """One token a request, and nothing pending."""


def plan(
    slots: Sequence[int],
    lengths: Sequence[int],
    num_pending: Sequence[int],
    *,
    first_row: int,
    device: torch.device,
) -> BlockPlan:
    """See `gated_delta.plan`."""
    assert max(lengths) <= BLOCK_TOKENS
    assert max(num_pending) < BLOCK_TOKENS
    starts = np.cumsum([first_row, *lengths])
    row_starts, own_slots, pending = (
        torch.from_numpy(x).to(device, non_blocking=True)
        for x in (starts.astype(np.int32), np.array(slots, np.int32), np.array(num_pending, np.int32))
    )
    is_plain = max(lengths) == 1 and not max(num_pending)
    return BlockPlan(row_starts, own_slots, pending, slice(first_row, int(starts[-1])), is_plain)
