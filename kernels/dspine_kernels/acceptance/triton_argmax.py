"""The argmax of logits in Triton, two launches.

It reads every row once: floor num_rows * vocab_size * itemsize.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspine_kernels.aot_spec import AotSpec

_NO_ID = 2**31 - 1
_CHUNK = 4096
_OPTIONS = {"num_warps": 4, "num_stages": 2}


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


def argmax(logits: Tensor) -> Tensor:
    """See `reference.argmax`; a row of NaN gives some id."""
    num_rows, vocab_size = logits.shape
    assert logits.stride(1) == 1
    num_chunks = triton.cdiv(vocab_size, _CHUNK)
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
        BLOCK_V=_CHUNK,
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


def argmax_specs() -> list[AotSpec]:
    """Both vocabularies, one in each dtype."""
    models = (("27B", 248320), ("8B", 151936))
    chunks = [_best_of_chunks_spec("27B", 248320, "bf16"), _best_of_chunks_spec("8B", 151936, "fp32")]
    return chunks + [_best_of_rows_spec(*model) for model in models]


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
        constexprs={"VOCAB": vocab_size, "NO_ID": _NO_ID, "BLOCK_V": _CHUNK},
        divisible_by_16=("row_stride",),
        **_OPTIONS,
    )


def _best_of_rows_spec(model: str, vocab_size: int) -> AotSpec:
    num_chunks = triton.next_power_of_2(triton.cdiv(vocab_size, _CHUNK))
    return AotSpec(
        name=f"acceptance.best_of_rows {model}",
        kernel=_best_of_rows_kernel,
        signature={"best": "*fp32", "best_ids": "*i32", "chosen": "*i64", "num_chunks": "i32"},
        constexprs={"VOCAB": vocab_size, "NO_ID": _NO_ID, "BLOCK_CHUNKS": num_chunks},
        divisible_by_16=(),
        **_OPTIONS,
    )
