"""The plan of a pass that the Triton kernel reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspine_kernels.paged_attention import flash
from dspine_kernels.paged_attention.flash import GatheredKeys


@dataclass(frozen=True, slots=True, eq=False)
class RaggedPlan:
    """Where each request's rows, positions and pages are.

    Only shapes and `max_width` decide a launch, so the tensors may be buffers that later passes refill: a request
    without rows does nothing.
    """

    page_table: Tensor  # int32 [B, max_pages]; entries past a request's tokens may hold anything
    row_starts: Tensor  # int32 [B + 1]: rows of request b are row_starts[b] .. row_starts[b + 1] - 1
    first_positions: Tensor  # int32 [B], of each request's first row
    max_width: int  # no request has more rows
    gathered: GatheredKeys | None = None  # for flash-attn; not for buffers that are refilled


def plan(
    pages: Sequence[Sequence[int]] | npt.NDArray[np.int32],
    query_lengths: Sequence[int],
    context_lengths: Sequence[int],
    *,
    page_tokens: int,
    device: torch.device,
) -> RaggedPlan:
    """As `reference.plan`."""
    num_keys = np.array(query_lengths) + np.array(context_lengths)
    if isinstance(pages, np.ndarray):
        table = pages.astype(np.int32, copy=False)
    else:
        counts = -(-num_keys // page_tokens)
        table = np.zeros((len(pages), counts.max()), np.int32)
        for row, own, count in zip(table, pages, counts.tolist(), strict=True):
            row[:count] = own[:count]
    row_starts = np.zeros(len(pages) + 1, np.int32)
    np.cumsum(query_lengths, out=row_starts[1:])
    first_positions = np.array(context_lengths, np.int32)
    page_table, starts, positions = (
        torch.from_numpy(x).to(device, non_blocking=True) for x in (table, row_starts, first_positions)
    )
    max_width, gathered = max(query_lengths), None
    if max_width >= flash.MIN_WIDTH and flash.is_installed():
        gathered = flash.gather(pages, num_keys.tolist(), page_tokens=page_tokens, device=device)
    return RaggedPlan(page_table, starts, positions, max_width, gathered)
