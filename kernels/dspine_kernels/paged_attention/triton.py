"""Paged attention in Triton; names of dimensions as in `reference`.

The G heads that share a key head are folded into rows: row m of a request is token m // G and head m % G of the group.
A program attends one tile of rows to one share of the request's keys; a second kernel adds the shares up.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspine_kernels.aot_spec import AotSpec
from dspine_kernels.paged_attention.ragged import RaggedPlan
from dspine_kernels.paged_attention.tiles import MAX_SPILL_BYTES, splits_for, tile_for
from dspine_kernels.paged_attention.triton_shares import (
    COMBINED_SPLITS,
    LOG2_E,
    attend_tile,
    combine_kernel,
    combine_shares,
    make_shares,
    share_of_keys,
    store_rows,
)


@triton.jit
def _attend_kernel(
    query,
    key_pages,
    value_pages,
    page_table,
    row_starts,
    first_positions,
    out,
    lse,
    scale,
    query_row_stride,
    query_head_stride,
    page_table_stride,
    num_rows,
    num_tiles,
    num_splits,
    G: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    IS_SPLIT: tl.constexpr,
):
    request, tile = tl.program_id(0) // num_tiles, tl.program_id(0) % num_tiles
    kv_head, split = tl.program_id(1), tl.program_id(2)
    first_row = tl.load(row_starts + request)
    width = tl.load(row_starts + request + 1) - first_row
    if tile * BLOCK_M >= width * G:
        return
    first_position = tl.load(first_positions + request)
    m = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, D)
    step, is_row = m // G, m < width * G
    row, head = first_row + step, kv_head * G + m % G
    query_offsets = row * query_row_stride + head * query_head_stride
    query_tile = tl.load(query + query_offsets[:, None] + d[None, :], mask=is_row[:, None], other=0.0)

    last_step = tl.minimum((tile * BLOCK_M + BLOCK_M - 1) // G, width - 1)
    begin, end = share_of_keys(first_position + width, split, num_splits, BLOCK_N)
    end = tl.minimum(end, first_position + last_step + 1)
    acc = tl.zeros((BLOCK_M, D), tl.float32)
    best = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    for start in range(begin, end, BLOCK_N):
        position = start + tl.arange(0, BLOCK_N)
        is_key = position < end
        page = tl.load(page_table + request * page_table_stride + position // PAGE, mask=is_key, other=0)
        slot = page.to(tl.int64) * PAGE + position % PAGE
        offsets = (slot * NUM_KV_HEADS + kv_head)[:, None] * D + d[None, :]
        key = tl.load(key_pages + offsets, mask=is_key[:, None], other=0.0)
        value = tl.load(value_pages + offsets, mask=is_key[:, None], other=0.0)
        visible = is_key[None, :] & (position[None, :] <= (first_position + step)[:, None])
        acc, best, total = attend_tile(query_tile, key, value, visible, acc, best, total, scale)

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
    key_pages: Tensor,
    value_pages: Tensor,
    plan: RaggedPlan,
    scale: float,
    out: Tensor | None = None,
) -> Tensor:
    """As `reference.attend`; heads of `query` may be strided. Rows of `out` that no request owns stay as they are."""
    num_rows, num_heads, head_dim = query.shape
    page_tokens, num_kv_heads = key_pages.shape[1:3]
    batch, max_pages = plan.page_table.shape
    num_groups = num_heads // num_kv_heads
    tile = tile_for(plan.max_width * num_groups, head_dim)
    num_tiles = -(-plan.max_width * num_groups // tile.rows)
    num_splits = splits_for(batch * num_tiles * num_kv_heads, max_pages * page_tokens)
    if out is None:
        out = torch.empty((num_rows, num_heads, head_dim), dtype=query.dtype, device=query.device)
    shares, lse = make_shares(out, num_splits)
    _attend_kernel[(batch * num_tiles, num_kv_heads, num_splits)](
        query,
        key_pages,
        value_pages,
        plan.page_table,
        plan.row_starts,
        plan.first_positions,
        shares,
        lse,
        scale * LOG2_E,
        query.stride(0),
        query.stride(1),
        plan.page_table.stride(0),
        num_rows,
        num_tiles,
        num_splits,
        G=num_groups,
        NUM_KV_HEADS=num_kv_heads,
        D=head_dim,
        PAGE=page_tokens,
        BLOCK_M=tile.rows,
        BLOCK_N=tile.keys,
        IS_SPLIT=num_splits > 1,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    combine_shares(shares, lse, plan.row_starts, out, plan.max_width)
    return out


def aot_specs() -> list[AotSpec]:
    """Qwen3.8-27B and Qwen3-8B: plain decoding, verification of 16 tokens, chunks."""
    return [
        _attend_spec("27B", 1, is_split=True),
        _attend_spec("27B", 16, is_split=True),
        _attend_spec("27B", 256, is_split=False),
        _combine_spec("27B"),
        _attend_spec("8B", 1, is_split=True),
        _attend_spec("8B", 16, is_split=True),
        _attend_spec("8B", 256, is_split=False),
        _combine_spec("8B"),
    ]


_SHAPES = {"27B": (6, 4, 256), "8B": (4, 8, 128)}
"""G, Hkv and D."""


def _attend_spec(model: str, width: int, *, is_split: bool) -> AotSpec:
    num_groups, num_kv_heads, head_dim = _SHAPES[model]
    tile = tile_for(width * num_groups, head_dim)
    heads = ("query", "key_pages", "value_pages")
    tables = ("page_table", "row_starts", "first_positions")
    strides = ("query_row_stride", "query_head_stride", "page_table_stride")
    return AotSpec(
        name=f"paged_attention {model} width {width}{' split' if is_split else ''}",
        kernel=_attend_kernel,
        signature=dict.fromkeys(heads, "*bf16")
        | dict.fromkeys(tables, "*i32")
        | {"out": "*fp32" if is_split else "*bf16", "lse": "*fp32" if is_split else "*bf16", "scale": "fp32"}
        | dict.fromkeys((*strides, "num_rows", "num_tiles", "num_splits"), "i32"),
        constexprs={
            "G": num_groups,
            "NUM_KV_HEADS": num_kv_heads,
            "D": head_dim,
            "PAGE": 16,
            "BLOCK_M": tile.rows,
            "BLOCK_N": tile.keys,
            "IS_SPLIT": is_split,
        },
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        max_spill_bytes=MAX_SPILL_BYTES,
        divisible_by_16=strides[:2],
    )


def _combine_spec(model: str) -> AotSpec:
    num_groups, num_kv_heads, head_dim = _SHAPES[model]
    return AotSpec(
        name=f"paged_attention {model} combine",
        kernel=combine_kernel,
        signature={
            "shares": "*fp32",
            "lse": "*fp32",
            "row_starts": "*i32",
            "out": "*bf16",
            "num_rows": "i32",
            "num_splits": "i32",
        },
        constexprs={"NUM_HEADS": num_groups * num_kv_heads, "D": head_dim, "BLOCK_S": COMBINED_SPLITS},
    )
