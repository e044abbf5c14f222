"""The walk through scored candidates in Triton."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from dspine_kernels.aot_spec import AotSpec
from dspine_kernels.transition_cache.reference import Walk


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


def walk_specs() -> list[AotSpec]:
    """With and without noise, and over independent rows."""
    return [
        _walk_spec("greedy", num_rows=16, has_noise=False),
        _walk_spec("sampled", num_rows=16, has_noise=True),
        _walk_spec("sampled, independent", num_rows=1, has_noise=True),
    ]


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
