"""Transition cache in Triton; `triton_walk` has the walk.

Scores take four launches: the readout, `_gate_kernel` (codes gathered, gates and messages of every predecessor), the
write, and `_score_kernel` (the sum, its norm, and the products with rows of `lm_head`, gathered). The readout and the
write are plain matrix products. What the write gives, `[num_blocks, num_proposals, top_k, H]`, is stored: a kernel that
kept it on chip would read the weights of the write once a tile of positions, more traffic than that from 8 blocks on.

Floor: the weights once, bytes (R H + 3 M R + H M) * 2 in bf16, 18.9 MB at 27B dimensions, and a block's gathered rows,
top_k * num_proposals * (H + R) * 2, 2.9 MB; the stored product adds twice 2.5 MB a block, which stays in the L2 cache
for few blocks.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from dspine_kernels.aot_spec import AotSpec
from dspine_kernels.injection.reference import InjectionWeights
from dspine_kernels.injection.triton import gate_tile
from dspine_kernels.transition_cache.triton_walk import walk_specs


@triton.jit
def _gate_kernel(
    projected,
    anchors,
    candidates,
    codes,
    receiver_gate,
    predecessor_gate,
    message,
    bias,
    gated,
    num_rows,
    NUM_PROPOSALS: tl.constexpr,
    TOP_K: tl.constexpr,
    RANK: tl.constexpr,
    MESSAGE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """Programs (tile of (block, position, predecessor), column tile)."""
    rows = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    columns = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    is_row = rows < num_rows
    places = tl.where(is_row, rows // TOP_K, 0)
    is_first = places % NUM_PROPOSALS == 0
    anchor = tl.load(anchors + places // NUM_PROPOSALS, mask=is_row & is_first, other=0)
    candidate = tl.load(candidates + rows - TOP_K, mask=is_row & (is_first == 0), other=0)
    token = tl.where(is_first, anchor, candidate).to(tl.int64)
    values = gate_tile(
        projected + places * RANK,
        codes + token * RANK,
        rows >= 0,
        is_row,
        columns,
        receiver_gate,
        predecessor_gate,
        message,
        bias,
        RANK,
        MESSAGE,
        BLOCK_R,
    )
    is_stored = is_row[:, None] & (columns < MESSAGE)[None, :]
    pointers = gated + rows[:, None] * MESSAGE + columns[None, :]
    tl.store(pointers, values.to(gated.dtype.element_ty), mask=is_stored)


@triton.jit
def _score_kernel(
    states,
    written,
    candidates,
    lm_head,
    norm_weight,
    scores,
    norm_eps,
    HIDDEN: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """A program a position: norm(state + scale * written of each predecessor) . lm_head of each candidate."""
    place = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK_K)
    is_k = k < TOP_K
    tokens = tl.load(candidates + place * TOP_K + k, mask=is_k, other=0).to(tl.int64)
    state_squares = tl.zeros((BLOCK_H,), tl.float32)
    for start in range(0, HIDDEN, BLOCK_H):
        h = start + tl.arange(0, BLOCK_H)
        state = tl.load(states + place * HIDDEN + h, mask=h < HIDDEN, other=0.0).to(tl.float32)
        state_squares += state * state
    scale = tl.sqrt(tl.sum(state_squares, 0) / HIDDEN)
    squares = tl.zeros((BLOCK_K,), tl.float32)
    products = tl.zeros((BLOCK_K, BLOCK_K), tl.float32)
    for start in range(0, HIDDEN, BLOCK_H):
        h = start + tl.arange(0, BLOCK_H)
        is_h = h < HIDDEN
        state = tl.load(states + place * HIDDEN + h, mask=is_h, other=0.0).to(tl.float32)
        weight = tl.load(norm_weight + h, mask=is_h, other=0.0).to(tl.float32)
        rows = (place * TOP_K + k)[:, None] * HIDDEN + h[None, :]
        received = tl.load(written + rows, mask=is_k[:, None] & is_h[None, :], other=0.0).to(tl.float32)
        refined = state[None, :] + scale * received
        squares += tl.sum(refined * refined, 1)
        heads = tokens[None, :] * HIDDEN + h[:, None]
        head = tl.load(lm_head + heads, mask=is_h[:, None] & is_k[None, :], other=0.0)
        weighted = (refined * weight[None, :]).to(head.dtype)
        products = tl.dot(weighted, head, products, input_precision="ieee")
    inverse = tl.rsqrt(squares / HIDDEN + norm_eps)
    offsets = (place * TOP_K + k)[:, None] * TOP_K + k[None, :]
    tl.store(scores + offsets, products * inverse[:, None], mask=is_k[:, None] & is_k[None, :])


_SCORE_TILES = {"BLOCK_H": 128}
_OPTIONS = {"num_warps": 4, "num_stages": 3}


def _gate_tiles(num_rows: int) -> dict[str, int]:
    """Two blocks of 15 x 16 predecessors fill a GPU with small tiles; more of them reuse the weights."""
    if num_rows <= 512:
        return {"BLOCK_ROWS": 64, "BLOCK_M": 32, "BLOCK_R": 64}
    return {"BLOCK_ROWS": 128, "BLOCK_M": 64, "BLOCK_R": 64}


def _gate_options(num_rows: int) -> dict[str, int]:
    return {"num_warps": 4 if num_rows <= 512 else 8, "num_stages": 3}


def scores(
    states: Tensor,
    anchors: Tensor,
    candidates: Tensor,
    codes: Tensor,
    lm_head: Tensor,
    weights: InjectionWeights,
    norm_weight: Tensor,
    norm_eps: float,
) -> Tensor:
    """See `reference.scores`; states, codes and weights of one dtype. Scores are not rounded to it."""
    num_blocks, num_proposals, top_k = candidates.shape
    message_size, rank = weights.message.shape
    hidden_size = states.shape[-1]
    rows = states.new_empty(num_blocks, num_proposals, top_k, top_k, dtype=torch.float32)
    if num_blocks == 0:
        return rows
    states, candidates = states.contiguous(), candidates.contiguous()
    projected = F.linear(states, weights.readout)  # [num_blocks, num_proposals, transfer_rank]
    num_rows = candidates.numel()
    gated = states.new_empty(num_rows, message_size)
    tiles = _gate_tiles(num_rows)
    _gate_kernel[(triton.cdiv(num_rows, tiles["BLOCK_ROWS"]), triton.cdiv(message_size, tiles["BLOCK_M"]))](
        projected,
        anchors,
        candidates,
        codes,
        weights.receiver_gate,
        weights.predecessor_gate,
        weights.message,
        weights.bias,
        gated,
        num_rows,
        NUM_PROPOSALS=num_proposals,
        TOP_K=top_k,
        RANK=rank,
        MESSAGE=message_size,
        **tiles,
        **_gate_options(num_rows),
    )
    written = F.linear(gated, weights.write)  # [num_rows, hidden_size]
    _score_kernel[(num_blocks * num_proposals,)](
        states,
        written,
        candidates,
        lm_head,
        norm_weight,
        rows,
        norm_eps,
        HIDDEN=hidden_size,
        TOP_K=top_k,
        BLOCK_K=_padded(top_k),
        **_SCORE_TILES,
        **_OPTIONS,
    )
    return rows


def _padded(top_k: int) -> int:
    """The smallest side of a tile product that holds `top_k`."""
    return max(16, int(triton.next_power_of_2(top_k)))


def aot_specs() -> list[AotSpec]:
    """One block and many, at both drafters' dimensions, and the walks."""
    models = (("27B", 5120), ("8B", 4096))
    gates = [_gate_spec(f"{num_blocks} blocks", num_blocks * 240) for num_blocks in (1, 32)]
    return [*gates, *(_score_spec(*model) for model in models), *walk_specs()]


def _gate_spec(name: str, num_rows: int) -> AotSpec:
    states = ("projected", "codes", "receiver_gate", "predecessor_gate", "message", "bias", "gated")
    return AotSpec(
        name=f"transition_cache.gate {name}",
        kernel=_gate_kernel,
        signature={
            **dict.fromkeys(states, "*bf16"),
            **dict.fromkeys(("anchors", "candidates"), "*i64"),
            "num_rows": "i32",
        },
        constexprs={
            "NUM_PROPOSALS": 15,
            "TOP_K": 16,
            "RANK": 1024,
            "MESSAGE": 512,
            **_gate_tiles(num_rows),
        },
        divisible_by_16=("num_rows",),
        **_gate_options(num_rows),
    )


def _score_spec(model: str, hidden_size: int) -> AotSpec:
    return AotSpec(
        name=f"transition_cache.score {model}",
        kernel=_score_kernel,
        signature={
            **dict.fromkeys(("states", "written", "lm_head", "norm_weight"), "*bf16"),
            "candidates": "*i64",
            "scores": "*fp32",
            "norm_eps": "fp32",
        },
        constexprs={"HIDDEN": hidden_size, "TOP_K": 16, "BLOCK_K": 16, **_SCORE_TILES},
        divisible_by_16=(),
        **_OPTIONS,
    )
