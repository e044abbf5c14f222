"""Norm, rotation and storing of heads in Triton: a program takes one query head, or one key and value head, of a row.

Rounds to the dtype of the heads after the norm and after the rotation only.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspine_kernels.aot_spec import AotSpec
from dspine_kernels.kv_write.reference import HeadTransform


@triton.jit
def _norm(x, scale, rms, dtype: tl.constexpr, ROUNDS_BEFORE_SCALE: tl.constexpr):
    normed = x.to(tl.float32) / rms
    if ROUNDS_BEFORE_SCALE:
        normed = normed.to(dtype).to(tl.float32)
    return (normed * scale.to(tl.float32)).to(dtype).to(tl.float32)


@triton.jit
def _place(
    x, scale, cos, sin, eps, out, D: tl.constexpr, HALF: tl.constexpr, ROUNDS_BEFORE_SCALE: tl.constexpr
):
    """Norm and rotate the head at `x` to `out`; `cos` and `sin` are its row's."""
    dtype: tl.constexpr = x.dtype.element_ty
    d = tl.arange(0, D)
    is_rotated = d < 2 * HALF
    partner = tl.where(d < HALF, d + HALF, tl.where(is_rotated, d - HALF, d))
    angle = tl.where(d < HALF, d, d - HALF)
    own = tl.load(x + d)
    rms = tl.sqrt(tl.sum(own.to(tl.float32) * own.to(tl.float32), 0) / D + eps)
    own = _norm(own, tl.load(scale + d), rms, dtype, ROUNDS_BEFORE_SCALE)
    other = _norm(tl.load(x + partner), tl.load(scale + partner), rms, dtype, ROUNDS_BEFORE_SCALE)
    other = tl.where(d < HALF, -other, other)
    own_part = own * tl.load(cos + angle, mask=is_rotated, other=1.0).to(tl.float32)
    other_part = other * tl.load(sin + angle, mask=is_rotated, other=0.0).to(tl.float32)
    tl.store(out + d, (own_part + other_part).to(dtype))


@triton.jit
def _write_kernel(
    query,
    key,
    value,
    query_scale,
    key_scale,
    cos,
    sin,
    slots,
    query_out,
    key_pages,
    value_pages,
    eps,
    query_row_stride,
    query_head_stride,
    key_row_stride,
    value_row_stride,
    num_stored,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,
    ROUNDS_BEFORE_SCALE: tl.constexpr,
):
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    cos += row * HALF
    sin += row * HALF
    if head < NUM_HEADS:
        source = query + row * query_row_stride + head * query_head_stride
        target = query_out + (row * NUM_HEADS + head) * D
        _place(source, query_scale, cos, sin, eps, target, D, HALF, ROUNDS_BEFORE_SCALE)
    elif row < num_stored:
        kv_head = head - NUM_HEADS
        slot = row if slots is None else tl.load(slots + row).to(tl.int64)
        if slot >= 0:
            offset = (slot * NUM_KV_HEADS + kv_head) * D
            source = key + row * key_row_stride + kv_head * D
            _place(source, key_scale, cos, sin, eps, key_pages + offset, D, HALF, ROUNDS_BEFORE_SCALE)
            if value is not None:
                d = tl.arange(0, D)
                copied = tl.load(value + row * value_row_stride + kv_head * D + d)
                tl.store(value_pages + offset + d, copied)


def place(query: Tensor, key: Tensor, heads: HeadTransform) -> tuple[Tensor, Tensor]:
    """As `reference.place`."""
    placed = torch.empty(key.shape, dtype=key.dtype, device=key.device)
    return _launch(query, key, None, heads, placed, None, None), placed


def place_keys(key: Tensor, heads: HeadTransform) -> Tensor:
    """As `reference.place_keys`."""
    no_query = torch.empty((key.shape[0], 0, key.shape[2]), dtype=key.dtype, device=key.device)
    return place(no_query, key, heads)[1]


def write(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    heads: HeadTransform,
    key_pages: Tensor,
    value_pages: Tensor,
    slots: Tensor,
) -> Tensor:
    """As `reference.write`; rows with a negative slot are not stored."""
    return _launch(query, key, value, heads, key_pages, value_pages, slots)


def _launch(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    heads: HeadTransform,
    key_pages: Tensor,
    value_pages: Tensor | None,
    slots: Tensor | None,
) -> Tensor:
    (num_rows, num_heads, head_dim), num_kv_heads = query.shape, key.shape[1]
    assert key.stride(1) == head_dim, "the heads of a row must be adjacent"
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    _write_kernel[(num_rows, num_heads + num_kv_heads)](
        query,
        key,
        value,
        heads.query_scale,
        heads.key_scale,
        heads.cos,
        heads.sin,
        slots,
        out,
        key_pages,
        value_pages,
        heads.eps,
        query.stride(0),
        query.stride(1),
        key.stride(0),
        0 if value is None else value.stride(0),
        num_rows if slots is None else len(slots),
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        D=head_dim,
        HALF=heads.cos.shape[-1],
        ROUNDS_BEFORE_SCALE=heads.rounds_before_scale,
        num_warps=1,
    )
    return out


def aot_specs() -> list[AotSpec]:
    """Qwen3.8-27B, Qwen3-8B, and the blocks of their drafters, whose keys go to no page."""
    return [
        _aot_spec("27B", 24, 4, 256, 32, is_zero_centred=True, is_stored=True),
        _aot_spec("8B", 32, 8, 128, 64, is_zero_centred=False, is_stored=True),
        _aot_spec("drafter", 32, 8, 128, 64, is_zero_centred=False, is_stored=False),
    ]


def _aot_spec(
    shape: str,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    half: int,
    *,
    is_zero_centred: bool,
    is_stored: bool,
) -> AotSpec:
    heads = ("query", "key", "query_out", "key_pages", "cos", "sin")
    strides = ("query_row_stride", "query_head_stride", "key_row_stride", "value_row_stride")
    scale = "*fp32" if is_zero_centred else "*bf16"
    constexprs = {
        "NUM_HEADS": num_heads,
        "NUM_KV_HEADS": num_kv_heads,
        "D": head_dim,
        "HALF": half,
        "ROUNDS_BEFORE_SCALE": not is_zero_centred,
    }
    stored = {"value": "*bf16", "value_pages": "*bf16", "slots": "*i64"}
    return AotSpec(
        name=f"kv_write {shape}",
        kernel=_write_kernel,
        signature=dict.fromkeys(heads, "*bf16")
        | {"query_scale": scale, "key_scale": scale, "eps": "fp32", "num_stored": "i32"}
        | dict.fromkeys(strides, "i32")
        | (stored if is_stored else {}),
        constexprs=constexprs if is_stored else constexprs | dict.fromkeys(stored),
        num_warps=1,
        divisible_by_16=strides,
    )
