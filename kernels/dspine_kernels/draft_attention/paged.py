"""The plan of a batch of blocks that the Triton kernel reads."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class PagedBlockPlan:
    """What `reference.plan` takes, unread: only shapes, window and rule decide a launch."""

    page_table: Tensor  # int [num_blocks, max_pages]
    first_pages: Tensor  # int [num_blocks]
    starts: Tensor  # int [num_blocks]; a block without context reads no page
    anchors_at: Tensor  # int [num_blocks]
    row_starts: Tensor  # int32 [num_blocks + 1], multiples of the block size
    window: int | None
    is_causal: bool


def plan(
    page_table: Tensor,
    first_pages: Tensor,
    starts: Tensor,
    anchors_at: Tensor,
    *,
    block_size: int,
    window: int | None,
    is_causal: bool,
) -> PagedBlockPlan:
    """As `reference.plan`."""
    assert all(x.is_contiguous() for x in (first_pages, starts, anchors_at)), "read as they lie"
    num_rows = (len(starts) + 1) * block_size
    row_starts = torch.arange(0, num_rows, block_size, dtype=torch.int32, device=starts.device)
    return PagedBlockPlan(page_table, first_pages, starts, anchors_at, row_starts, window, is_causal)
