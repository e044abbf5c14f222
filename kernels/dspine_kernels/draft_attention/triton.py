"""Block attention over a paged context in Triton; rows, shares and sums as in `paged_attention`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspine_kernels.aot_spec import AotSpec
from dspine_kernels.draft_attention.paged import PagedBlockPlan
from dspine_kernels.paged_attention.tiles import MAX_SPILL_BYTES, splits_for, tile_for
from dspine_kernels.paged_attention.triton_shares import (
    LOG2_E,
    attend_tile,
    combine_shares,
    make_shares,
    share_of_keys,
    store_rows,
)


@triton.jit
def _attend_kernel(
    query,
    key,
    value,
    key_pages,
    value_pages,
    page_table,
    first_pages,
    starts,
    anchors_at,
    out,
    lse,
    scale,
    query_row_stride,
    key_row_stride,
    value_row_stride,
    page_table_stride,
    num_rows,
    num_tiles,
    num_splits,
    WINDOW: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    G: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_OWN: tl.constexpr,
    IS_SPLIT: tl.constexpr,
):
    block, tile = tl.program_id(0) // num_tiles, tl.program_id(0) % num_tiles
    kv_head, split = tl.program_id(1), tl.program_id(2)
    anchor = tl.load(anchors_at + block).to(tl.int32)
    context_start = tl.load(starts + block).to(tl.int32)
    first_page = tl.load(first_pages + block).to(tl.int32)
    if WINDOW is not None:
        context_start = tl.maximum(context_start, anchor - (WINDOW - 1))
    m = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, D)
    step, is_row = m // G, m < BLOCK_SIZE * G
    row, head = block * BLOCK_SIZE + step, kv_head * G + m % G
    query_offsets = (row * query_row_stride + head * D)[:, None] + d[None, :]
    query_tile = tl.load(query + query_offsets, mask=is_row[:, None], other=0.0)

    acc = tl.zeros((BLOCK_M, D), tl.float32)
    best = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    begin, end = share_of_keys(anchor - context_start, split, num_splits, BLOCK_N)
    for start in range(begin, end, BLOCK_N):
        index = start + tl.arange(0, BLOCK_N)
        is_key = index < end
        position = context_start + index
        entry = position // PAGE - first_page
        page = tl.load(page_table + block * page_table_stride + entry, mask=is_key, other=0)
        slot = page.to(tl.int64) * PAGE + position % PAGE
        offsets = (slot * NUM_KV_HEADS + kv_head)[:, None] * D + d[None, :]
        key_tile = tl.load(key_pages + offsets, mask=is_key[:, None], other=0.0)
        value_tile = tl.load(value_pages + offsets, mask=is_key[:, None], other=0.0)
        visible = is_key[None, :] & is_row[:, None]
        if WINDOW is not None:
            visible = visible & ((anchor + step)[:, None] - position[None, :] < WINDOW)
        acc, best, total = attend_tile(query_tile, key_tile, value_tile, visible, acc, best, total, scale)

    if split == 0:
        other = tl.arange(0, BLOCK_OWN)
        is_key = other < BLOCK_SIZE
        own_row = block * BLOCK_SIZE + other
        key_offsets = (own_row * key_row_stride + kv_head * D)[:, None] + d[None, :]
        value_offsets = (own_row * value_row_stride + kv_head * D)[:, None] + d[None, :]
        key_tile = tl.load(key + key_offsets, mask=is_key[:, None], other=0.0)
        value_tile = tl.load(value + value_offsets, mask=is_key[:, None], other=0.0)
        distance = step[:, None] - other[None, :]
        visible = is_key[None, :] & is_row[:, None]
        if IS_CAUSAL:
            visible = visible & (distance >= 0)
        if WINDOW is not None:
            visible = visible & (distance < WINDOW)
        acc, best, total = attend_tile(query_tile, key_tile, value_tile, visible, acc, best, total, scale)

    num_heads = NUM_KV_HEADS * G
    store_rows(
        out,
        lse,
        row * num_heads + head,
        is_row,
        acc,
        best,
        total,
        split * num_rows * num_heads,
        d,
        D,
        IS_SPLIT,
    )


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    block_plan: PagedBlockPlan,
) -> Tensor:
    """As `reference.attend`; rows of `query`, `key` and `value` may be strided."""
    num_blocks, block_size, num_heads, head_dim = query.shape
    page_tokens, num_kv_heads = key_pages.shape[1:3]
    num_groups = num_heads // num_kv_heads
    tile = tile_for(block_size * num_groups, head_dim)
    num_tiles = -(-block_size * num_groups // tile.rows)
    max_keys = block_plan.page_table.shape[1] * page_tokens
    if block_plan.window is not None:
        max_keys = min(max_keys, block_plan.window)
    num_splits = splits_for(num_blocks * num_tiles * num_kv_heads, max_keys)
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    rows = out.view(-1, num_heads, head_dim)
    shares, lse = make_shares(rows, num_splits)
    _attend_kernel[(num_blocks * num_tiles, num_kv_heads, num_splits)](
        query,
        key,
        value,
        key_pages,
        value_pages,
        block_plan.page_table,
        block_plan.first_pages,
        block_plan.starts,
        block_plan.anchors_at,
        shares,
        lse,
        head_dim**-0.5 * LOG2_E,
        query.stride(1),
        key.stride(1),
        value.stride(1),
        block_plan.page_table.stride(0),
        num_blocks * block_size,
        num_tiles,
        num_splits,
        WINDOW=block_plan.window,
        IS_CAUSAL=block_plan.is_causal,
        BLOCK_SIZE=block_size,
        G=num_groups,
        NUM_KV_HEADS=num_kv_heads,
        D=head_dim,
        PAGE=page_tokens,
        BLOCK_M=tile.rows,
        BLOCK_N=tile.keys,
        BLOCK_OWN=max(16, triton.next_power_of_2(block_size)),
        IS_SPLIT=num_splits > 1,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    combine_shares(shares, lse, block_plan.row_starts, rows, block_size)
    return out


def aot_specs() -> list[AotSpec]:
    """The published drafters: Qwen3.8-27B's slides over 8192 tokens, Qwen3-8B's sees all."""
    return [_aot_spec("window 8192", 8192, is_split=True), _aot_spec("full", None, is_split=False)]


def _aot_spec(name: str, window: int | None, *, is_split: bool) -> AotSpec:
    block_size, num_groups, num_kv_heads, head_dim = 16, 4, 8, 128
    tile = tile_for(block_size * num_groups, head_dim)
    heads = ("query", "key", "value", "key_pages", "value_pages")
    tables = ("page_table", "first_pages", "starts", "anchors_at")
    strides = ("query_row_stride", "key_row_stride", "value_row_stride", "page_table_stride")
    return AotSpec(
        name=f"draft_attention {name}{' split' if is_split else ''}",
        kernel=_attend_kernel,
        signature=dict.fromkeys(heads, "*bf16")
        | dict.fromkeys(tables, "*i64")
        | {"out": "*fp32" if is_split else "*bf16", "lse": "*fp32" if is_split else "*bf16", "scale": "fp32"}
        | dict.fromkeys((*strides, "num_rows", "num_tiles", "num_splits"), "i32"),
        constexprs={
            "WINDOW": window,
            "IS_CAUSAL": True,
            "BLOCK_SIZE": block_size,
            "G": num_groups,
            "NUM_KV_HEADS": num_kv_heads,
            "D": head_dim,
            "PAGE": 16,
            "BLOCK_M": tile.rows,
            "BLOCK_N": tile.keys,
            "BLOCK_OWN": block_size,
            "IS_SPLIT": is_split,
        },
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        max_spill_bytes=MAX_SPILL_BYTES,
        divisible_by_16=strides[:3],
    )
