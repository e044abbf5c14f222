"""Attention of draft blocks over their paged context and themselves."""

from __future__ import annotations

import torch
from torch import Tensor

from dspine_kernels.dispatch import uses_triton
from dspine_kernels.draft_attention import paged, reference
from dspine_kernels.draft_attention.paged import PagedBlockPlan

__all__ = ["BlockPlan", "attend", "plan"]

BlockPlan = reference.BlockPlan | PagedBlockPlan


def plan(
    page_table: Tensor,
    first_pages: Tensor,
    starts: Tensor,
    anchors_at: Tensor,
    *,
    block_size: int,
    num_groups: int,
    window: int | None,
    is_causal: bool,
    dtype: torch.dtype,
) -> BlockPlan:
    """As `reference.plan`. On GPUs nothing is read from the tensors, which may be refilled under a captured graph."""
    if uses_triton(starts):
        return paged.plan(
            page_table,
            first_pages,
            starts,
            anchors_at,
            block_size=block_size,
            window=window,
            is_causal=is_causal,
        )
    return reference.plan(
        page_table,
        first_pages,
        starts,
        anchors_at,
        block_size=block_size,
        num_groups=num_groups,
        window=window,
        is_causal=is_causal,
        dtype=dtype,
    )


def attend(
    query: Tensor, key: Tensor, value: Tensor, key_pages: Tensor, value_pages: Tensor, block_plan: BlockPlan
) -> Tensor:
    """As `reference.attend`."""
    if isinstance(block_plan, PagedBlockPlan):
        from dspine_kernels.draft_attention import triton

        return triton.attend(query, key, value, key_pages, value_pages, block_plan)
    return reference.attend(query, key, value, key_pages, value_pages, block_plan)
