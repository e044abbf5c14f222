"""Acceptance in Triton, two launches each; names of arguments as in `reference`.

The argmax reads every row once: floor num_rows * vocab_size * itemsize. Sampling reads one row a block, the one that
its last token comes from (one chunk of it twice, and a number a proposal): floor num_blocks * vocab_size * 4.

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
from dspine_kernels.aot_spec import AotSpec

_NO_ID = 2**31 - 1


@triton.jit
def _best_of_chunks_kernel(
    logits,
    best,
    best_ids,
    row_stride,
    num_chunks,
    VOCAB: tl.constexpr,
    NO_ID: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Programs (row, chunk): the largest logit and the lowest id that has it."""
    row = tl.program_id(0)
    chunk = tl.program_id(1)
    ids = chunk * BLOCK_V + tl.arange(0, BLOCK_V)
    values = tl.load(logits + row.to(tl.int64) * row_stride + ids, mask=ids < VOCAB, other=float("-inf"))
    values = values.to(tl.float32)
    largest = tl.max(values, 0)
    tl.store(best + row * num_chunks + chunk, largest)
    is_largest = (values == largest) & (ids < VOCAB)
    tl.store(best_ids + row * num_chunks + chunk, tl.min(tl.where(is_largest, ids, NO_ID), 0))


@triton.jit
def _best_of_rows_kernel(
    best, best_ids, chosen, num_chunks, VOCAB: tl.constexpr, NO_ID: tl.constexpr, BLOCK_CHUNKS: tl.constexpr
):
    """A program a row: the best of its chunks."""
    row = tl.program_id(0)
    chunks = tl.arange(0, BLOCK_CHUNKS)
    is_chunk = chunks < num_chunks
    values = tl.load(best + row * num_chunks + chunks, mask=is_chunk, other=float("-inf"))
    ids = tl.load(best_ids + row * num_chunks + chunks, mask=is_chunk, other=NO_ID)
    lowest = tl.min(tl.where(values == tl.max(values, 0), ids, NO_ID), 0)
    # A row of NaN has no largest.
    tl.store(chosen + row, tl.minimum(lowest, VOCAB - 1).to(tl.int64))


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


_GREEDY_CHUNK = 4096
_SAMPLED_CHUNK = 2048
_OPTIONS = {"num_warps": 4, "num_stages": 2}


def argmax(logits: Tensor) -> Tensor:
    """See `reference.argmax`; a row of NaN gives some id."""
    num_rows, vocab_size = logits.shape
    assert logits.stride(1) == 1
    num_chunks = triton.cdiv(vocab_size, _GREEDY_CHUNK)
    best = logits.new_empty(num_rows, num_chunks, dtype=torch.float32)
    best_ids = logits.new_empty(num_rows, num_chunks, dtype=torch.int32)
    chosen = logits.new_empty(num_rows, dtype=torch.int64)
    if num_rows == 0:
        return chosen
    _best_of_chunks_kernel[(num_rows, num_chunks)](
        logits,
        best,
        best_ids,
        logits.stride(0),
        num_chunks,
        VOCAB=vocab_size,
        NO_ID=_NO_ID,
        BLOCK_V=_GREEDY_CHUNK,
        **_OPTIONS,
    )
    _best_of_rows_kernel[(num_rows,)](
        best,
        best_ids,
        chosen,
        num_chunks,
        VOCAB=vocab_size,
        NO_ID=_NO_ID,
        BLOCK_CHUNKS=triton.next_power_of_2(num_chunks),
        **_OPTIONS,
    )
    return chosen


def accept_sampled(
    probs: Tensor, blocks: BlockRows, draft_candidates: Tensor, draft_probs: Tensor, uniforms: Tensor
) -> Accepted:
    """See `reference.accept_sampled`. Blocks without rows are left out."""
    vocab_size, top_k = probs.shape[-1], draft_candidates.shape[-1]
    assert all(t.is_contiguous() for t in (probs, draft_candidates, draft_probs))
    num_chunks = triton.cdiv(vocab_size, _SAMPLED_CHUNK)
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
        BLOCK_V=_SAMPLED_CHUNK,
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
        BLOCK_V=_SAMPLED_CHUNK,
        **_OPTIONS,
    )
    return accepted


def aot_specs() -> list[AotSpec]:
    """Both vocabularies; blocks of up to 16 rows and 16 candidates."""
    models = (("27B", 248320), ("8B", 151936))
    chunks = [_best_of_chunks_spec("27B", 248320, "bf16"), _best_of_chunks_spec("8B", 151936, "fp32")]
    return chunks + [spec for model, vocab_size in models for spec in _specs(model, vocab_size)]


def _best_of_chunks_spec(model: str, vocab_size: int, dtype: str) -> AotSpec:
    return AotSpec(
        name=f"acceptance.best_of_chunks {model} {dtype}",
        kernel=_best_of_chunks_kernel,
        signature={
            "logits": f"*{dtype}",
            "best": "*fp32",
            "best_ids": "*i32",
            "row_stride": "i32",
            "num_chunks": "i32",
        },
        constexprs={"VOCAB": vocab_size, "NO_ID": _NO_ID, "BLOCK_V": _GREEDY_CHUNK},
        divisible_by_16=("row_stride",),
        **_OPTIONS,
    )


def _specs(model: str, vocab_size: int) -> list[AotSpec]:
    ids = dict.fromkeys(
        ("starts", "proposals", "draft_candidates", "num_accepted", "tokens", "chosen"), "*i64"
    )
    numbers = dict.fromkeys(("target_sums", "residual_sums", "uniforms"), "*fp64")
    types = {**ids, **numbers, "probs": "*fp32", "draft_probs": "*fp32", "num_chunks": "i32"}
    types |= {"best": "*fp32", "best_ids": "*i32"}
    greedy_chunks = triton.next_power_of_2(triton.cdiv(vocab_size, _GREEDY_CHUNK))
    sampled_chunks = triton.next_power_of_2(triton.cdiv(vocab_size, _SAMPLED_CHUNK))
    sampled = {"VOCAB": vocab_size, "TOP_K": 16, "BLOCK_V": _SAMPLED_CHUNK}
    constants = {
        _best_of_rows_kernel: {"VOCAB": vocab_size, "NO_ID": _NO_ID, "BLOCK_CHUNKS": greedy_chunks},
        _residual_sums_kernel: {**sampled, "BLOCK_ROWS": 16, "BLOCK_K": 16},
        _sample_kernel: {**sampled, "BLOCK_CHUNKS": sampled_chunks},
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
