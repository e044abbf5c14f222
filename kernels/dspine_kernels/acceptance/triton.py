"""Acceptance of sampled proposals in Triton, two launches; names of arguments as in `reference`.

It reads one row a block, the one that its last token comes from (one chunk of it twice, and a number a proposal): floor
num_blocks * vocab_size * 4.

The residual is sampled by the inverse of its cumulative weights in two passes: sums of chunks, then a scan of the one
chunk that the share falls into. It needs one uniform number, not one a token, and is exact: the weights are the float32
differences themselves, sums are float64, and a token of weight zero is excluded outright, not only by rounding.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspine_kernels.acceptance.reference import Accepted, BlockRows
from dspine_kernels.acceptance.triton_argmax import argmax_specs
from dspine_kernels.aot_spec import AotSpec


@triton.jit
def residual_weights(
    probs, draft_candidates, draft_probs, row, ids, VOCAB: tl.constexpr, TOP_K: tl.constexpr
):
    """p and max(p - q, 0) of a row at `ids`, zero beyond the vocabulary."""
    target = tl.load(probs + row.to(tl.int64) * VOCAB + ids, mask=ids < VOCAB, other=0.0)
    weights = target
    for k in range(TOP_K):
        candidate = tl.load(draft_candidates + row * TOP_K + k)
        weights -= tl.where(ids == candidate, tl.load(draft_probs + row * TOP_K + k), 0.0)
    return target, tl.maximum(weights, 0.0)


@triton.jit
def _residual_sums_kernel(
    probs,
    starts,
    proposals,
    draft_candidates,
    draft_probs,
    uniforms,
    num_accepted,
    target_sums,
    residual_sums,
    num_chunks,
    VOCAB: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Programs (block, chunk): each decides the block for itself, then sums its chunk of the final row."""
    block = tl.program_id(0)
    chunk = tl.program_id(1)
    start = tl.load(starts + block)
    num_rows = tl.load(starts + block + 1) - start
    if num_rows > 0:
        places = tl.arange(0, BLOCK_ROWS)
        k = tl.arange(0, BLOCK_K)
        rows = start + places
        is_proposal = places < num_rows - 1
        proposal = tl.load(proposals + rows, mask=is_proposal, other=0)
        target = tl.load(probs + rows * VOCAB + proposal, mask=is_proposal, other=0.0).to(tl.float64)
        is_candidate = is_proposal[:, None] & (k < TOP_K)[None, :]
        offsets = rows[:, None] * TOP_K + k[None, :]
        candidates = tl.load(draft_candidates + offsets, mask=is_candidate, other=-1)
        masses = tl.load(draft_probs + offsets, mask=is_candidate, other=0.0).to(tl.float64)
        draft = tl.sum(tl.where(candidates == proposal[:, None], masses, 0.0), 1)
        uniform = tl.load(uniforms + rows, mask=is_proposal, other=0.0)
        is_accepted = ((target > 0.0) & (target >= draft)) | (uniform * draft < target)
        accepted = tl.min(tl.where(is_proposal & is_accepted, BLOCK_ROWS, places), 0)
        if chunk == 0:
            tl.store(num_accepted + block, accepted.to(tl.int64))
        ids = chunk * BLOCK_V + tl.arange(0, BLOCK_V)
        all_probs, weights = residual_weights(
            probs, draft_candidates, draft_probs, start + accepted, ids, VOCAB, TOP_K
        )
        tl.store(target_sums + block * num_chunks + chunk, tl.sum(all_probs.to(tl.float64), 0))
        tl.store(residual_sums + block * num_chunks + chunk, tl.sum(weights.to(tl.float64), 0))


@triton.jit
def first_above(weights, share, places, SIZE: tl.constexpr):
    """The first place of positive weight whose cumulative weight exceeds `share`, else the last of positive weight."""
    is_above = (tl.cumsum(weights, 0) > share) & (weights > 0.0)
    first = tl.min(tl.where(is_above, places, SIZE), 0)
    last = tl.max(tl.where(weights > 0.0, places, 0), 0)
    return tl.where(first < SIZE, first, last)


@triton.jit
def _sample_kernel(
    probs,
    starts,
    draft_candidates,
    draft_probs,
    uniforms,
    num_accepted,
    target_sums,
    residual_sums,
    tokens,
    num_chunks,
    VOCAB: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK_CHUNKS: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """A program a block: the chunk that the share falls into, then the token in it."""
    block = tl.program_id(0)
    start = tl.load(starts + block)
    end = tl.load(starts + block + 1)
    if end > start:
        chunks = tl.arange(0, BLOCK_CHUNKS)
        offsets = block * num_chunks + chunks
        residuals = tl.load(residual_sums + offsets, mask=chunks < num_chunks, other=0.0)
        targets = tl.load(target_sums + offsets, mask=chunks < num_chunks, other=0.0)
        has_residual = tl.sum(residuals, 0) > 0.0
        sums = tl.where(has_residual, residuals, targets)
        share = tl.load(uniforms + end - 1) * tl.sum(sums, 0)
        chunk = first_above(sums, share, chunks, BLOCK_CHUNKS)
        rest = share - tl.sum(tl.where(chunks < chunk, sums, 0.0), 0)
        places = tl.arange(0, BLOCK_V)
        all_probs, weights = residual_weights(
            probs,
            draft_candidates,
            draft_probs,
            start + tl.load(num_accepted + block),
            chunk * BLOCK_V + places,
            VOCAB,
            TOP_K,
        )
        weights = tl.where(has_residual, weights, all_probs).to(tl.float64)
        token = chunk * BLOCK_V + first_above(weights, rest, places, BLOCK_V)
        tl.store(tokens + block, token.to(tl.int64))


_CHUNK = 2048
_OPTIONS = {"num_warps": 4, "num_stages": 2}


def accept_sampled(
    probs: Tensor, blocks: BlockRows, draft_candidates: Tensor, draft_probs: Tensor, uniforms: Tensor
) -> Accepted:
    """See `reference.accept_sampled`. Blocks without rows are left out."""
    vocab_size, top_k = probs.shape[-1], draft_candidates.shape[-1]
    assert all(t.is_contiguous() for t in (probs, draft_candidates, draft_probs))
    num_chunks = triton.cdiv(vocab_size, _CHUNK)
    sums = probs.new_empty(2, blocks.num_blocks, num_chunks, dtype=torch.float64)
    ids = blocks.starts.new_empty(2, blocks.num_blocks)
    accepted = Accepted(ids[0], ids[1])
    if blocks.num_blocks == 0:
        return accepted
    _residual_sums_kernel[(blocks.num_blocks, num_chunks)](
        probs,
        blocks.starts,
        blocks.proposals,
        draft_candidates,
        draft_probs,
        uniforms,
        accepted.num_accepted,
        sums[0],
        sums[1],
        num_chunks,
        VOCAB=vocab_size,
        TOP_K=top_k,
        BLOCK_ROWS=max(16, triton.next_power_of_2(blocks.max_rows)),
        BLOCK_K=triton.next_power_of_2(top_k),
        BLOCK_V=_CHUNK,
        **_OPTIONS,
    )
    _sample_kernel[(blocks.num_blocks,)](
        probs,
        blocks.starts,
        draft_candidates,
        draft_probs,
        uniforms,
        accepted.num_accepted,
        sums[0],
        sums[1],
        accepted.tokens,
        num_chunks,
        VOCAB=vocab_size,
        TOP_K=top_k,
        BLOCK_CHUNKS=triton.next_power_of_2(num_chunks),
        BLOCK_V=_CHUNK,
        **_OPTIONS,
    )
    return accepted


def aot_specs() -> list[AotSpec]:
    """Both vocabularies, and the argmax."""
    return [*argmax_specs(), *_specs("27B", 248320), *_specs("8B", 151936)]


def _specs(model: str, vocab_size: int) -> list[AotSpec]:
    """Blocks of up to 16 rows and 16 candidates."""
    ids = dict.fromkeys(("starts", "proposals", "draft_candidates", "num_accepted", "tokens"), "*i64")
    numbers = dict.fromkeys(("target_sums", "residual_sums", "uniforms"), "*fp64")
    types = {**ids, **numbers, "probs": "*fp32", "draft_probs": "*fp32", "num_chunks": "i32"}
    num_chunks = triton.next_power_of_2(triton.cdiv(vocab_size, _CHUNK))
    shared = {"VOCAB": vocab_size, "TOP_K": 16, "BLOCK_V": _CHUNK}
    constants = {
        _residual_sums_kernel: {**shared, "BLOCK_ROWS": 16, "BLOCK_K": 16},
        _sample_kernel: {**shared, "BLOCK_CHUNKS": num_chunks},
    }
    return [
        AotSpec(
            name=f"acceptance.{kernel.__name__.removeprefix('_').removesuffix('_kernel')} {model}",
            kernel=kernel,
            signature={name: types[name] for name in kernel.arg_names if name not in own},
            constexprs=own,
            divisible_by_16=(),
            **_OPTIONS,
        )
        for kernel, own in constants.items()
    ]
