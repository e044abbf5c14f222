"""Attention to a request's keys in shares: the online softmax of one, and the sum of all.

Names of dimensions as in `reference`; rows fold the heads that share a key head, as in `triton`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = 1.4426950408889634
COMBINED_SPLITS = 16
"""Shares that are loaded at once."""


@triton.jit
def share_of_keys(num_keys, split, num_splits, BLOCK_N: tl.constexpr):
    """The keys [first, last) that a split attends to; none where there are fewer than splits."""
    size = tl.cdiv(tl.cdiv(num_keys, num_splits), BLOCK_N) * BLOCK_N
    return split * size, tl.minimum((split + 1) * size, num_keys)


@triton.jit
def attend_tile(query, key, value, visible, acc, best, total, scale):
    """A step of the online softmax: base 2, `scale` includes log2(e); `best` is -inf until a key was visible."""
    scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
    scores = tl.where(visible, scores, float("-inf"))
    new_best = tl.maximum(best, tl.max(scores, 1))
    shift = tl.where(new_best == float("-inf"), 0.0, new_best)
    weights = tl.exp2(scores - shift[:, None])
    decay = tl.exp2(best - shift)
    total = total * decay + tl.sum(weights, 1)
    acc = acc * decay[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
    return acc, new_best, total


@triton.jit
def store_rows(
    out, lse, offsets, is_row, acc, best, total, share, d, D: tl.constexpr, IS_SPLIT: tl.constexpr
):
    """Store rows that are finished, or one share of them with its log2 of the sum of exponentials.

    `offsets` are those of the rows' heads, `share` the number of heads before this share.
    """
    has_keys = is_row & (total > 0)
    total = tl.where(total > 0, total, 1.0)
    acc = acc / total[:, None]
    if IS_SPLIT:
        tl.store(lse + share + offsets, best + tl.log2(total), mask=is_row)
        offsets += share
    pointers = out + offsets[:, None] * D + d[None, :]
    tl.store(pointers, acc.to(out.dtype.element_ty), mask=has_keys[:, None])


@triton.jit
def combine_kernel(
    shares,
    lse,
    row_starts,
    out,
    num_rows,
    num_splits,
    NUM_HEADS: tl.constexpr,
    D: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    request, step, head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = tl.load(row_starts + request) + step
    if row >= tl.load(row_starts + request + 1):
        return
    offset, stride = row * NUM_HEADS + head, num_rows * NUM_HEADS
    splits, d = tl.arange(0, BLOCK_S), tl.arange(0, D)
    best = float("-inf")
    for first in range(0, num_splits, BLOCK_S):
        split = first + splits
        size = tl.load(lse + split * stride + offset, mask=split < num_splits, other=float("-inf"))
        best = tl.maximum(best, tl.max(size, 0))
    acc, total = tl.zeros((D,), tl.float32), 0.0
    for first in range(0, num_splits, BLOCK_S):
        split = first + splits
        size = tl.load(lse + split * stride + offset, mask=split < num_splits, other=float("-inf"))
        weight = tl.exp2(size - best)
        pointers = shares + (split * stride + offset)[:, None] * D + d[None, :]
        share = tl.load(pointers, mask=(weight > 0)[:, None], other=0.0)
        acc += tl.sum(share * weight[:, None], 0)
        total += tl.sum(weight, 0)
    tl.store(out + offset * D + d, (acc / total).to(out.dtype.element_ty))


def make_shares(out: Tensor, num_splits: int) -> tuple[Tensor, Tensor]:
    """Where splits store their shares of `out` `[num_rows, Hq, D]` and the log2 of their sums; one split has `out`."""
    if num_splits == 1:
        return out, out
    shares = torch.empty((num_splits, *out.shape), dtype=torch.float32, device=out.device)
    return shares, torch.empty(shares.shape[:-1], dtype=torch.float32, device=out.device)


def combine_shares(shares: Tensor, lse: Tensor, row_starts: Tensor, out: Tensor, max_width: int) -> None:
    """Add up the shares of the rows that requests own, in `out`."""
    if shares is out:
        return
    num_rows, num_heads, head_dim = out.shape
    combine_kernel[(len(row_starts) - 1, max_width, num_heads)](
        shares,
        lse,
        row_starts,
        out,
        num_rows,
        len(shares),
        NUM_HEADS=num_heads,
        D=head_dim,
        BLOCK_S=COMBINED_SPLITS,
        num_warps=4,
    )
