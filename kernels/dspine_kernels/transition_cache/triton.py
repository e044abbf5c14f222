"""Transition cache and walk in Triton.

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
from dspine_kernels.transition_cache.reference import Walk


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


@triton.jit
def _walk_kernel(
    rows,
    candidates,
    temperatures,
    noise,
    tokens,
    probs,
    confidence,
    HAS_NOISE: tl.constexpr,
    NUM_PROPOSALS: tl.constexpr,
    NUM_ROWS: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """A program a block: the choice from every row at once, then the path through them, which stays on chip."""
    block = tl.program_id(0).to(tl.int64)
    p = tl.arange(0, BLOCK_P)
    r = tl.arange(0, BLOCK_R)
    k = tl.arange(0, BLOCK_K)
    places = block * NUM_PROPOSALS + p
    is_place = p < NUM_PROPOSALS
    is_k = k < TOP_K
    offsets = (places[:, None, None] * NUM_ROWS + r[None, :, None]) * TOP_K + k[None, None, :]
    is_row = is_place[:, None] & (r < NUM_ROWS)[None, :]
    scores = tl.load(rows + offsets, mask=is_row[:, :, None] & is_k[None, None, :], other=0.0)
    scores = tl.where(is_k[None, None, :], scores, float("-inf"))
    temperature = tl.load(temperatures + block)
    divisor = tl.where(temperature == 0.0, 1.0, temperature)
    pairs = places[:, None] * TOP_K + k[None, :]
    is_pair = is_place[:, None] & is_k[None, :]
    if HAS_NOISE:
        tempered = tl.div_rn(scores, tl.zeros_like(scores) + divisor).to(tl.float64)
        gumbel = tl.load(noise + pairs, mask=is_pair, other=0.0)
        best = tl.argmax(tempered + gumbel[:, None, :], 2)
    else:
        best = tl.argmax(scores, 2)
    chosen = tl.zeros((BLOCK_P,), tl.int32)
    previous = tl.zeros((BLOCK_P,), tl.int32)
    last = tl.sum(chosen, 0)
    for position in range(NUM_PROPOSALS):
        previous = tl.where(p == position, last, previous)
        is_here = (p == position)[:, None] & (r == last)[None, :]
        choice = tl.sum(tl.sum(tl.where(is_here, best, 0), 1), 0)
        chosen = tl.where(p == position, choice, chosen)
        if NUM_ROWS > 1:
            last = choice
    walked = tl.sum(tl.where((r[None, :] == previous[:, None])[:, :, None], scores, 0.0), 1)
    exponentials = tl.exp(walked - tl.max(walked, 1)[:, None])
    tl.store(confidence + places, 1.0 / tl.sum(exponentials, 1), mask=is_place)
    if HAS_NOISE:
        walked = tl.div_rn(walked, tl.zeros_like(walked) + divisor)
        exponentials = tl.exp(walked - tl.max(walked, 1)[:, None])
    tl.store(probs + pairs, exponentials / tl.sum(exponentials, 1)[:, None], mask=is_pair)
    ids = tl.load(candidates + pairs, mask=is_pair, other=0)
    tl.store(tokens + places, tl.sum(tl.where(k[None, :] == chosen[:, None], ids, 0), 1), mask=is_place)


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


def walk(rows: Tensor, candidates: Tensor, temperatures: Tensor, noise: Tensor | None) -> Walk:
    """See `reference.walk`."""
    num_blocks, num_proposals, num_rows, top_k = rows.shape
    rows, candidates = rows.contiguous(), candidates.contiguous()
    walked = Walk(
        tokens=candidates.new_empty(num_blocks, num_proposals),
        probs=rows.new_empty(num_blocks, num_proposals, top_k),
        confidence=rows.new_empty(num_blocks, num_proposals),
    )
    if num_blocks > 0:
        _walk_kernel[(num_blocks,)](
            rows,
            candidates,
            temperatures,
            temperatures if noise is None else noise,
            *walked,
            HAS_NOISE=noise is not None,
            NUM_PROPOSALS=num_proposals,
            NUM_ROWS=num_rows,
            TOP_K=top_k,
            BLOCK_P=triton.next_power_of_2(num_proposals),
            BLOCK_R=triton.next_power_of_2(num_rows),
            BLOCK_K=triton.next_power_of_2(top_k),
            num_warps=4,
        )
    return walked


def _padded(top_k: int) -> int:
    """The smallest side of a tile product that holds `top_k`."""
    return max(16, int(triton.next_power_of_2(top_k)))


def aot_specs() -> list[AotSpec]:
    """One block and many, at both drafters' dimensions; walks with and without noise, and over independent rows."""
    models = (("27B", 5120), ("8B", 4096))
    gates = [_gate_spec(f"{num_blocks} blocks", num_blocks * 240) for num_blocks in (1, 32)]
    walks = [
        _walk_spec("greedy", num_rows=16, has_noise=False),
        _walk_spec("sampled", num_rows=16, has_noise=True),
        _walk_spec("sampled, independent", num_rows=1, has_noise=True),
    ]
    return [*gates, *(_score_spec(*model) for model in models), *walks]


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


def _walk_spec(name: str, *, num_rows: int, has_noise: bool) -> AotSpec:
    floats = dict.fromkeys(("rows", "temperatures", "probs", "confidence"), "*fp32")
    return AotSpec(
        name=f"transition_cache.walk {name}",
        kernel=_walk_kernel,
        signature={
            **floats,
            **dict.fromkeys(("candidates", "tokens"), "*i64"),
            "noise": "*fp64" if has_noise else "*fp32",
        },
        constexprs={
            "HAS_NOISE": has_noise,
            "NUM_PROPOSALS": 15,
            "NUM_ROWS": num_rows,
            "TOP_K": 16,
            "BLOCK_P": 16,
            "BLOCK_R": num_rows,
            "BLOCK_K": 16,
        },
        num_warps=4,
    )
