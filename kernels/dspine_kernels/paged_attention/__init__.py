"""Causal attention of ragged queries over paged keys and values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspine_kernels.dispatch import uses_triton
from dspine_kernels.paged_attention import flash, ragged, reference
from dspine_kernels.paged_attention.ragged import RaggedPlan
from dspine_kernels.paged_attention.reference import write

__all__ = ["Plan", "RaggedPlan", "attend", "plan", "write"]

Plan = reference.Plan | RaggedPlan


def plan(
    pages: Sequence[Sequence[int]] | npt.NDArray[np.int32],
    query_lengths: Sequence[int],
    context_lengths: Sequence[int],
    *,
    page_tokens: int,
    device: torch.device,
) -> Plan:
    """As `reference.plan`, for the kernel that runs on `device`."""
    make = ragged.plan if uses_triton(torch.empty(0, device=device)) else reference.plan
    return make(pages, query_lengths, context_lengths, page_tokens=page_tokens, device=device)


def attend(query: Tensor, key_pages: Tensor, value_pages: Tensor, plan: Plan, scale: float) -> Tensor:
    """As `reference.attend`. Under a `RaggedPlan` rows that no request owns may hold anything."""
    if not isinstance(plan, RaggedPlan):
        return reference.attend(query, key_pages, value_pages, plan, scale)
    if plan.gathered is not None and query.dtype != torch.float32:
        rows = (plan.row_starts, plan.max_width)
        return flash.attend(query, key_pages, value_pages, *rows, plan.gathered, scale)
    from dspine_kernels.paged_attention import triton

    return triton.attend(query, key_pages, value_pages, plan, scale)
