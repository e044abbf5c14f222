"""Plain torch paged attention; production's path on CPUs.

Names of dimensions: B requests, Hq query heads, Hkv key/value heads, G = Hq / Hkv, D head dim, W query tokens a
request, S key slots a request. A page holds 16 consecutive tokens of one request.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

PADDED_QUERY_TOKENS = 16
"""Up to this many query tokens a request, the batch is padded and attends at once; beyond, request by request."""


def write(key: Tensor, value: Tensor, key_pages: Tensor, value_pages: Tensor, slots: Tensor) -> None:
    """Store the keys and values of some tokens in their pages, in place.

    Args:
        key, value: `[n, Hkv, D]`.
        key_pages, value_pages: `[num_pages, page_tokens, Hkv, D]`, contiguous.
        slots: int64 `[n]`, page * page_tokens + offset.
    """
    key_pages.view(-1, *key_pages.shape[2:]).index_copy_(0, slots, key)
    value_pages.view(-1, *value_pages.shape[2:]).index_copy_(0, slots, value)


def attend(
    query: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    page_table: Tensor,
    query_lengths: Tensor,
    context_lengths: Tensor,
    scale: float,
) -> Tensor:
    """Causal attention of the tokens of a pass, whose keys and values are in the pages already.

    Args:
        query: `[num_tokens, Hq, D]`, requests packed one after the other.
        key_pages, value_pages: `[num_pages, page_tokens, Hkv, D]`, contiguous; slots that no request has written may
            hold anything.
        page_table: int64 `[B, max_pages]`, pages of each request in order; entries beyond its tokens are ignored.
        query_lengths: `[B]`, tokens of each request in this pass; they sum to num_tokens.
        context_lengths: `[B]`, cached tokens of each request before this pass.

    Returns:
        `[num_tokens, Hq, D]`.
    """
    lengths = query_lengths.tolist()
    batch, longest = len(lengths), max(lengths)
    if longest > PADDED_QUERY_TOKENS and batch > 1:
        out = torch.empty_like(query)
        start = 0
        for row, length in enumerate(lengths):
            one, rows = slice(row, row + 1), slice(start, start + length)
            out[rows] = _attend_padded(
                query[None, rows],
                key_pages,
                value_pages,
                page_table[one],
                query_lengths[one],
                context_lengths[one],
                scale,
            )[0]
            start += length
        return out
    is_rectangular = query.shape[0] == batch * longest
    if is_rectangular:
        padded = query.view(batch, longest, *query.shape[1:])
    else:
        steps = torch.arange(longest, device=query.device)
        valid = steps < query_lengths[:, None]  # [B, W]
        first = query_lengths.cumsum(0) - query_lengths
        padded = query[(first[:, None] + steps).where(valid, 0)]  # [B, W, Hq, D]
    out = _attend_padded(padded, key_pages, value_pages, page_table, query_lengths, context_lengths, scale)
    return out.flatten(0, 1) if is_rectangular else out[valid]


def _attend_padded(
    query: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    page_table: Tensor,
    query_lengths: Tensor,
    context_lengths: Tensor,
    scale: float,
) -> Tensor:
    """`attend` for queries `[B, W, Hq, D]`, right-padded; rows beyond a request's length mean nothing."""
    batch, width, num_heads, head_dim = query.shape
    page_tokens, num_kv_heads = key_pages.shape[1:3]
    num_groups = num_heads // num_kv_heads
    total = context_lengths + query_lengths  # [B]
    page_table = page_table[:, : -(-int(total.max()) // page_tokens)]
    slots = page_table[:, :, None] * page_tokens + torch.arange(page_tokens, device=query.device)
    slots = slots.flatten(1)  # [B, S]
    positions = torch.arange(slots.shape[1], device=query.device)
    # Unwritten slots may hold NaN, which no mask removes: read the request's first slot in their place.
    slots = slots.where(positions < total[:, None], slots[:, :1])
    key, value = (
        pages.view(-1, num_kv_heads, head_dim)
        .index_select(0, slots.flatten())
        .view(batch, -1, num_kv_heads, head_dim)
        for pages in (key_pages, value_pages)
    )
    last = context_lengths[:, None] + torch.arange(width, device=query.device)  # [B, W]
    visible = positions <= last[..., None]  # [B, W, S]
    # The heads that share keys become rows of one attention, so keys and values need no repeating.
    rows = query.view(batch, width, num_kv_heads, num_groups, head_dim).permute(0, 2, 3, 1, 4).flatten(2, 3)
    out = F.scaled_dot_product_attention(
        rows,
        key.transpose(1, 2),
        value.transpose(1, 2),
        attn_mask=visible.repeat(1, num_groups, 1).unsqueeze(1),
        scale=scale,
    )  # [B, Hkv, G * W, D]
    return out.view(batch, num_kv_heads, num_groups, width, head_dim).permute(0, 3, 1, 2, 4).reshape_as(query)
