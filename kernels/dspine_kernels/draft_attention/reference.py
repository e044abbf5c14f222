"""Block attention over a paged context in plain torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

PAGE_TOKENS = 16


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """Which cached keys a batch of blocks reads and what each query may see; shared by layers of one mask."""

    slots: Tensor  # int64 [num_blocks * num_context]: page * 16 + offset; masked entries repeat a valid slot
    bias: Tensor  # [num_blocks, 1, num_groups * block_size, num_context + block_size]: 0 or -inf


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
    """Plan the attention of blocks anchored at `anchors_at` over context `starts <= position < anchors_at`.

    Query j stands at anchor + j. It sees context and block keys with `query position - key position < window`
    (all of them without a window); under `is_causal` no key after itself.

    Args:
        page_table: `[num_blocks, max_pages]`; entry i covers positions from 16 * (first_page + i). Entries outside
            the context may hold anything.
        first_pages: `[num_blocks]`, absolute page number of entry 0.
        starts: int64 `[num_blocks]`, at most `anchors_at`; equal means no context.
        anchors_at: int64 `[num_blocks]`.
        block_size: the anchor and the proposals.
        num_groups: query heads that share a key head.
        window: keys a query sees, itself counted; None sees all.
        is_causal: the rule inside the block.
        dtype: of the queries.
    """
    if window is not None:
        starts = torch.maximum(starts, anchors_at - (window - 1))
    lengths = (anchors_at - starts).tolist()
    num_context = max(lengths)
    assert min(lengths) >= 0, "context starts after its anchor"
    context = starts[:, None] + torch.arange(num_context, device=starts.device)  # [num_blocks, num_context]
    queries = anchors_at[:, None] + torch.arange(block_size, device=starts.device)  # [num_blocks, block_size]
    keys = torch.cat((context, queries), 1)
    allowed = torch.ones(
        (len(lengths), block_size, num_context + block_size), dtype=torch.bool, device=starts.device
    )
    distances = queries.unsqueeze(2) - keys.unsqueeze(1)
    if is_causal:
        allowed &= distances >= 0
    if window is not None:
        allowed &= distances < window
    slots = _slots(context, page_table, first_pages) if num_context else context
    if min(lengths) < num_context:
        is_context = context < anchors_at[:, None]
        allowed[:, :, :num_context] &= is_context.unsqueeze(1)
        a_valid_slot = slots.flatten()[is_context.flatten().int().argmax()]
        slots = torch.where(is_context, slots, a_valid_slot)
    bias = torch.zeros(allowed.shape, dtype=dtype, device=starts.device).masked_fill_(~allowed, -torch.inf)
    return BlockPlan(slots=slots.flatten(), bias=bias.repeat(1, num_groups, 1).unsqueeze(1))


def attend(
    query: Tensor, key: Tensor, value: Tensor, key_pages: Tensor, value_pages: Tensor, block_plan: BlockPlan
) -> Tensor:
    """Attention with scale head_dim ** -0.5.

    Args:
        query: `[num_blocks, block_size, num_heads, head_dim]`.
        key: the block's own, `[num_blocks, block_size, num_kv_heads, head_dim]`; `value` alike.
        value: see `key`.
        key_pages: `[num_pages, 16, num_kv_heads, head_dim]`; slots outside the context may hold NaN.
        value_pages: see `key_pages`.
        block_plan: from `plan`.

    Returns:
        `[num_blocks, block_size, num_heads, head_dim]`.
    """
    num_blocks, block_size, num_heads, head_dim = query.shape
    keys = _with_context(key, key_pages, block_plan)
    values = _with_context(value, value_pages, block_plan)
    num_groups = num_heads // key.shape[2]
    # Heads that share a key head are folded into the query axis, so that keys are never repeated.
    folded = query.view(num_blocks, block_size, -1, num_groups, head_dim).permute(0, 2, 3, 1, 4).flatten(2, 3)
    out = F.scaled_dot_product_attention(folded, keys, values, attn_mask=block_plan.bias)
    unfolded = out.view(num_blocks, -1, num_groups, block_size, head_dim).permute(0, 3, 1, 2, 4)
    return unfolded.reshape(query.shape)


def _slots(positions: Tensor, page_table: Tensor, first_pages: Tensor) -> Tensor:
    """Pool slots of absolute positions `[num_blocks, n]`; those past the table give some slot of it."""
    entries = positions // PAGE_TOKENS - first_pages[:, None]
    pages = page_table.gather(1, entries.clamp(0, page_table.shape[1] - 1)).long()
    return pages * PAGE_TOKENS + positions % PAGE_TOKENS


def _with_context(block: Tensor, pages: Tensor, block_plan: BlockPlan) -> Tensor:
    """The context's rows, then the block's: `[num_blocks, num_kv_heads, num_context + block_size, head_dim]`."""
    num_blocks, _, num_kv_heads, head_dim = block.shape
    cached = pages.view(-1, num_kv_heads * head_dim).index_select(0, block_plan.slots)
    rows = torch.cat((cached.view(num_blocks, -1, num_kv_heads, head_dim), block), 1)
    return rows.transpose(1, 2)
