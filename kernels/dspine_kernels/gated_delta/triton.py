"""The gated delta rule over blocks, in Triton; names of dimensions as in `layer`.

`_chunk_kernel` runs a request's pending inputs and block, at most 31 columns, in the closed form of
`chunk_form.one_chunk`: it reads the state from memory once (the second time it is in a cache) and writes it back at
the anchor, which is among the first 16 columns. `_step_kernel` runs one column.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspine_kernels.aot_spec import AotSpec
from dspine_kernels.gated_delta.blocks import BLOCK_TOKENS, BlockPlan
from dspine_kernels.gated_delta.layer import Inputs, States, Weights
from dspine_kernels.gated_delta.triton_convolve import convolve, convolve_spec

HALF: tl.constexpr = tl.constexpr(BLOCK_TOKENS)
PRECISION = "tf32x3"
"""Of products: nearly fp32, on tensor cores."""
_NUM_WARPS = 4
_CHUNK_BLOCK_K = 32
_CHUNK_BLOCK_V = 64
_CHUNK_STAGES = 2
_STEP_BLOCK_V = 32


@triton.jit
def invert_unit_lower(system, row):
    """Inverse of I + `system`, strictly lower [16, 16], by forward substitution."""
    inverse = -system
    for i in range(1, HALF):
        own = tl.sum(tl.where((row == i)[:, None], inverse, 0.0), 0)
        own += tl.sum(own[:, None] * inverse, 0)
        inverse = tl.where((row == i)[:, None], own[None, :], inverse)
    return inverse + tl.where(row[:, None] == row[None, :], 1.0, 0.0)


@triton.jit
def _chunk_kernel(
    heads,
    gates,
    state,
    row_starts,
    slots,
    num_pending,
    out,
    NUM_KEY_HEADS: tl.constexpr,
    NUM_VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    PRECISION: tl.constexpr,
):
    COLUMNS: tl.constexpr = 2 * HALF
    CONV_DIM: tl.constexpr = 2 * NUM_KEY_HEADS * KEY_DIM + NUM_VALUE_HEADS * VALUE_DIM
    tile, head, request = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_row = tl.load(row_starts + request).to(tl.int64)
    width = (tl.load(row_starts + request + 1) - first_row).to(tl.int32)
    if width == 0:
        return
    slot = tl.load(slots + request).to(tl.int64)
    anchor = tl.load(num_pending + request)  # its column
    num_columns = anchor + width
    key_head = head // (NUM_VALUE_HEADS // NUM_KEY_HEADS)
    row = tl.arange(0, HALF)
    v = tile * BLOCK_V + tl.arange(0, BLOCK_V)
    columns = heads + request * (COLUMNS * CONV_DIM)
    queries = columns + (anchor + row)[:, None] * CONV_DIM + key_head * KEY_DIM
    keys = columns + row[:, None] * CONV_DIM + (NUM_KEY_HEADS + key_head) * KEY_DIM
    values = columns + row[:, None] * CONV_DIM + 2 * NUM_KEY_HEADS * KEY_DIM + head * VALUE_DIM + v[None, :]
    states = state + (slot * NUM_VALUE_HEADS + head) * (KEY_DIM * VALUE_DIM) + v[None, :]
    is_query, is_first, is_second = row < width, row < num_columns, row + HALF < num_columns

    # Products of queries and of the two halves of keys with keys and with the state.
    keys_00 = tl.zeros((HALF, HALF), tl.float32)
    keys_10 = tl.zeros((HALF, HALF), tl.float32)
    keys_11 = tl.zeros((HALF, HALF), tl.float32)
    queries_0 = tl.zeros((HALF, HALF), tl.float32)
    queries_1 = tl.zeros((HALF, HALF), tl.float32)
    read_0 = tl.zeros((HALF, BLOCK_V), tl.float32)
    read_1 = tl.zeros((HALF, BLOCK_V), tl.float32)
    read_q = tl.zeros((HALF, BLOCK_V), tl.float32)
    for start in range(0, KEY_DIM, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        key_0 = tl.load(keys + k[None, :], mask=is_first[:, None], other=0.0)
        key_1 = tl.load(keys + HALF * CONV_DIM + k[None, :], mask=is_second[:, None], other=0.0)
        query = tl.load(queries + k[None, :], mask=is_query[:, None], other=0.0)
        part = tl.load(states + k[:, None] * VALUE_DIM)
        keys_00 = tl.dot(key_0, tl.trans(key_0), keys_00, input_precision=PRECISION)
        keys_10 = tl.dot(key_1, tl.trans(key_0), keys_10, input_precision=PRECISION)
        keys_11 = tl.dot(key_1, tl.trans(key_1), keys_11, input_precision=PRECISION)
        queries_0 = tl.dot(query, tl.trans(key_0), queries_0, input_precision=PRECISION)
        queries_1 = tl.dot(query, tl.trans(key_1), queries_1, input_precision=PRECISION)
        read_0 = tl.dot(key_0, part, read_0, input_precision=PRECISION)
        read_1 = tl.dot(key_1, part, read_1, input_precision=PRECISION)
        read_q = tl.dot(query, part, read_q, input_precision=PRECISION)

    # Cumulative log decay of the two halves of columns and of the queries.
    gate = gates + (request * NUM_VALUE_HEADS + head) * 2 * COLUMNS + row
    log_decay_0, log_decay_1 = tl.load(gate), tl.load(gate + HALF)
    beta_0, beta_1 = tl.load(gate + COLUMNS), tl.load(gate + COLUMNS + HALF)
    total_0 = tl.cumsum(log_decay_0, 0)
    total_1 = tl.sum(log_decay_0, 0) + tl.cumsum(log_decay_1, 0)
    sees_0 = row[None, :] <= (anchor + row)[:, None]
    sees_1 = row[None, :] + HALF <= (anchor + row)[:, None]
    total_q = tl.sum(tl.where(sees_0, log_decay_0[None, :], 0.0), 1)
    total_q += tl.sum(tl.where(sees_1, log_decay_1[None, :], 0.0), 1)

    is_before = row[:, None] > row[None, :]
    decay = tl.exp(tl.where(is_before, total_0[:, None] - total_0[None, :], 0.0)) * beta_0[:, None]
    inverse_0 = invert_unit_lower(tl.where(is_before, keys_00 * decay, 0.0), row)
    decay = tl.exp(tl.where(is_before, total_1[:, None] - total_1[None, :], 0.0)) * beta_1[:, None]
    inverse_1 = invert_unit_lower(tl.where(is_before, keys_11 * decay, 0.0), row)
    system_10 = keys_10 * tl.exp(total_1[:, None] - total_0[None, :]) * beta_1[:, None]

    value = tl.load(values, mask=is_first[:, None], other=0.0)
    wanted = (value - tl.exp(total_0)[:, None] * read_0) * beta_0[:, None]
    written_0 = tl.dot(inverse_0, wanted, input_precision=PRECISION)
    value = tl.load(values + HALF * CONV_DIM, mask=is_second[:, None], other=0.0)
    wanted = (value - tl.exp(total_1)[:, None] * read_1) * beta_1[:, None]
    wanted -= tl.dot(system_10, written_0, input_precision=PRECISION)
    written_1 = tl.dot(inverse_1, wanted, input_precision=PRECISION)

    decay = tl.exp(tl.where(sees_0, total_q[:, None] - total_0[None, :], float("-inf")))
    result = tl.exp(total_q)[:, None] * read_q
    result = tl.dot(queries_0 * decay, written_0, result, input_precision=PRECISION)
    decay = tl.exp(tl.where(sees_1, total_q[:, None] - total_1[None, :], float("-inf")))
    result = tl.dot(queries_1 * decay, written_1, result, input_precision=PRECISION)
    places = out + ((first_row + row)[:, None] * NUM_VALUE_HEADS + head) * VALUE_DIM + v[None, :]
    tl.store(places, result.to(out.dtype.element_ty), mask=is_query[:, None])

    at_anchor = tl.sum(tl.where(row <= anchor, log_decay_0, 0.0), 0)
    to_anchor = tl.exp(tl.where(row <= anchor, at_anchor - total_0, float("-inf")))
    kept = written_0 * to_anchor[:, None]
    for start in range(0, KEY_DIM, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        key_0 = tl.load(keys + k[None, :], mask=is_first[:, None], other=0.0)
        part = tl.load(states + k[:, None] * VALUE_DIM) * tl.exp(at_anchor)
        part = tl.dot(tl.trans(key_0), kept, part, input_precision=PRECISION)
        tl.store(states + k[:, None] * VALUE_DIM, part)


@triton.jit
def _step_kernel(
    heads,
    gates,
    state,
    row_starts,
    slots,
    out,
    NUM_KEY_HEADS: tl.constexpr,
    NUM_VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    CONV_DIM: tl.constexpr = 2 * NUM_KEY_HEADS * KEY_DIM + NUM_VALUE_HEADS * VALUE_DIM
    tile, head, request = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = tl.load(row_starts + request).to(tl.int64)
    if tl.load(row_starts + request + 1) == row:
        return
    slot = tl.load(slots + request).to(tl.int64)
    key_head = head // (NUM_VALUE_HEADS // NUM_KEY_HEADS)
    k, v = tl.arange(0, KEY_DIM), tile * BLOCK_V + tl.arange(0, BLOCK_V)
    own = heads + request * CONV_DIM
    query = tl.load(own + key_head * KEY_DIM + k)
    key = tl.load(own + (NUM_KEY_HEADS + key_head) * KEY_DIM + k)
    value = tl.load(own + 2 * NUM_KEY_HEADS * KEY_DIM + head * VALUE_DIM + v)
    gate = gates + (request * NUM_VALUE_HEADS + head) * 2
    states = state + (slot * NUM_VALUE_HEADS + head) * (KEY_DIM * VALUE_DIM)
    states += k[:, None] * VALUE_DIM + v[None, :]
    now = tl.load(states) * tl.exp(tl.load(gate))
    written = (value - tl.sum(key[:, None] * now, 0)) * tl.load(gate + 1)
    now += key[:, None] * written[None, :]
    result = tl.sum(query[:, None] * now, 0)
    tl.store(states, now)
    tl.store(out + (row * NUM_VALUE_HEADS + head) * VALUE_DIM + v, result.to(out.dtype.element_ty))


def verify(inputs: Inputs, weights: Weights, states: States, plan: BlockPlan) -> Tensor:
    """See `gated_delta.verify_slots`. Dk and Dv are powers of two, 16 or more; pools and rows are contiguous."""
    assert states.pending.a.shape[1] < BLOCK_TOKENS
    assert all(x.is_contiguous() for x in (states.state, states.conv_state, *states.pending))
    num_value_heads, key_dim, value_dim = states.state.shape[1:]
    num_columns = 1 if plan.is_plain else 2 * BLOCK_TOKENS
    heads, gates = convolve(inputs, weights, states, plan, num_columns)
    shape = (inputs.a.shape[0], num_value_heads, value_dim)
    out = torch.empty(shape, dtype=inputs.mixed_qkv.dtype, device=heads.device)
    dims = {
        "NUM_KEY_HEADS": weights.num_key_heads,
        "NUM_VALUE_HEADS": num_value_heads,
        "KEY_DIM": key_dim,
        "VALUE_DIM": value_dim,
    }
    if plan.is_plain:
        block_v = min(value_dim, _STEP_BLOCK_V)
        _step_kernel[(value_dim // block_v, num_value_heads, len(plan.slots))](
            heads,
            gates,
            states.state,
            plan.row_starts,
            plan.slots,
            out,
            **dims,
            BLOCK_V=block_v,
            num_warps=_NUM_WARPS,
        )
    else:
        block_v = min(value_dim, _CHUNK_BLOCK_V)
        _chunk_kernel[(value_dim // block_v, num_value_heads, len(plan.slots))](
            heads,
            gates,
            states.state,
            plan.row_starts,
            plan.slots,
            plan.num_pending,
            out,
            **dims,
            BLOCK_K=min(key_dim, _CHUNK_BLOCK_K),
            BLOCK_V=block_v,
            PRECISION=PRECISION,
            num_warps=_NUM_WARPS,
            num_stages=_CHUNK_STAGES,
        )
    return out[plan.rows]


def aot_specs() -> list[AotSpec]:
    """Qwen3.8-27B: blocks and plain decoding."""
    pointers = {"heads": "*fp32", "gates": "*fp32", "state": "*fp32", "row_starts": "*i32", "slots": "*i32"}
    dims = {"NUM_KEY_HEADS": 16, "NUM_VALUE_HEADS": 48, "KEY_DIM": 128, "VALUE_DIM": 128}
    chunk = AotSpec(
        name="gated_delta 27B chunk",
        kernel=_chunk_kernel,
        signature=pointers | {"num_pending": "*i32", "out": "*bf16"},
        constexprs=dims | {"BLOCK_K": _CHUNK_BLOCK_K, "BLOCK_V": _CHUNK_BLOCK_V, "PRECISION": PRECISION},
        num_warps=_NUM_WARPS,
        num_stages=_CHUNK_STAGES,
    )
    step = AotSpec(
        name="gated_delta 27B step",
        kernel=_step_kernel,
        signature=pointers | {"out": "*bf16"},
        constexprs=dims | {"BLOCK_V": _STEP_BLOCK_V},
        num_warps=_NUM_WARPS,
    )
    return [convolve_spec(1), convolve_spec(2 * BLOCK_TOKENS), chunk, step]
