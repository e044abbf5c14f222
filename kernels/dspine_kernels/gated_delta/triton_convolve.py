"""The part of the gated delta rule before its heads: convolution, norms and gates, in Triton.

The columns of a request are its pending inputs and then its block. Each program owns its channels: it computes their
columns, and only then moves on the convolution's state and keeps the block's inputs, so none reads what another has
moved on.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspine_kernels.aot_spec import AotSpec
from dspine_kernels.gated_delta.blocks import BlockPlan
from dspine_kernels.gated_delta.heads import NORM_EPS
from dspine_kernels.gated_delta.layer import Inputs, States, Weights

_NUM_WARPS = 4


@triton.jit
def load_raw(
    new, pending, past, column, num_pending, num_columns, channel, is_channel, row_stride, CONV_DIM, NUM_PAST
):
    """Raw inputs of columns, which count from the first pending one: [columns, channels]; 0 beyond the last."""
    is_past, is_new = column < 0, (column >= num_pending) & (column < num_columns)
    is_pending = (column >= 0) & (column < num_pending)
    offsets = column[:, None] * CONV_DIM + channel[None, :]
    old = tl.load(
        past + NUM_PAST * CONV_DIM + offsets, mask=is_past[:, None] & is_channel[None, :], other=0.0
    )
    waiting = tl.load(pending + offsets, mask=is_pending[:, None] & is_channel[None, :], other=0.0)
    new_offsets = (column - num_pending)[:, None] * row_stride + channel[None, :]
    fresh = tl.load(new + new_offsets, mask=is_new[:, None] & is_channel[None, :], other=0.0)
    return old + waiting + fresh  # two of them are 0


@triton.jit
def _convolve_kernel(
    mixed_qkv,
    a,
    b,
    conv_weight,
    A_log,
    dt_bias,
    conv_state,
    pending_qkv,
    pending_a,
    pending_b,
    row_starts,
    slots,
    num_pending,
    heads,
    gates,
    row_stride,
    a_stride,
    b_stride,
    channel_stride,
    tap_stride,
    NUM_KEY_HEADS: tl.constexpr,
    NUM_VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    KERNEL: tl.constexpr,
    MAX_PENDING: tl.constexpr,
    COLUMNS: tl.constexpr,
    PAST_BLOCK: tl.constexpr,
    EPS: tl.constexpr,
):
    NUM_PAST: tl.constexpr = KERNEL - 1
    QUERY_KEY_HEADS: tl.constexpr = 2 * NUM_KEY_HEADS
    CONV_DIM: tl.constexpr = QUERY_KEY_HEADS * KEY_DIM + NUM_VALUE_HEADS * VALUE_DIM
    head, request = tl.program_id(0), tl.program_id(1)
    first_row = tl.load(row_starts + request).to(tl.int64)
    width = (tl.load(row_starts + request + 1) - first_row).to(tl.int32)
    if width == 0:
        return
    slot = tl.load(slots + request).to(tl.int64)
    waiting = tl.load(num_pending + request)
    num_columns = waiting + width
    value_head = head - QUERY_KEY_HEADS  # negative for query and key heads
    is_value = value_head >= 0
    d = tl.arange(0, BLOCK_D)
    channel = tl.where(is_value, QUERY_KEY_HEADS * KEY_DIM + value_head * VALUE_DIM, head * KEY_DIM) + d
    is_channel = d < tl.where(is_value, VALUE_DIM, KEY_DIM)
    new = mixed_qkv + first_row * row_stride
    pending = pending_qkv + slot * (MAX_PENDING * CONV_DIM)
    past = conv_state + slot * (NUM_PAST * CONV_DIM)

    column = tl.arange(0, COLUMNS)
    mixed = tl.zeros((COLUMNS, BLOCK_D), tl.float32)
    for tap in tl.static_range(KERNEL):
        weight = tl.load(
            conv_weight + channel * channel_stride + tap * tap_stride, mask=is_channel, other=0.0
        )
        raw = load_raw(
            new,
            pending,
            past,
            column + (tap - NUM_PAST),
            waiting,
            num_columns,
            channel,
            is_channel,
            row_stride,
            CONV_DIM,
            NUM_PAST,
        )
        mixed += raw.to(tl.float32) * weight.to(tl.float32)[None, :]
    mixed = mixed / (1.0 + tl.exp(-mixed))
    if not is_value:
        norm = tl.rsqrt(tl.sum(mixed * mixed, 1) + EPS)
        mixed = mixed * (norm * tl.where(head < NUM_KEY_HEADS, KEY_DIM**-0.5, 1.0))[:, None]
    to_store = (column < num_columns)[:, None] & is_channel[None, :]
    tl.store(
        heads + (request * COLUMNS + column)[:, None] * CONV_DIM + channel[None, :], mixed, mask=to_store
    )

    kept = tl.arange(0, COLUMNS)  # column of the pool: the token after it in the block
    is_kept = kept < width - 1
    if is_value:
        is_pending, is_new = column < waiting, (column >= waiting) & (column < num_columns)
        pool = (slot * MAX_PENDING + column) * NUM_VALUE_HEADS + value_head
        row = first_row + column - waiting
        raw_a = tl.load(pending_a + pool, mask=is_pending, other=0.0).to(tl.float32)
        raw_b = tl.load(pending_b + pool, mask=is_pending, other=0.0).to(tl.float32)
        raw_a += tl.load(a + row * a_stride + value_head, mask=is_new, other=0.0).to(tl.float32)
        raw_b += tl.load(b + row * b_stride + value_head, mask=is_new, other=0.0).to(tl.float32)
        biased = raw_a + tl.load(dt_bias + value_head).to(tl.float32)
        softplus = tl.maximum(biased, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(biased)))
        log_decay = -tl.exp(tl.load(A_log + value_head).to(tl.float32)) * softplus
        beta = 1.0 / (1.0 + tl.exp(-raw_b))
        gate = gates + (request * NUM_VALUE_HEADS + value_head) * 2 * COLUMNS + column
        tl.store(gate, tl.where(column < num_columns, log_decay, 0.0))
        tl.store(gate + COLUMNS, tl.where(column < num_columns, beta, 0.0))
        kept_row = first_row + 1 + kept
        kept_a = tl.load(a + kept_row * a_stride + value_head, mask=is_kept, other=0.0)
        kept_b = tl.load(b + kept_row * b_stride + value_head, mask=is_kept, other=0.0)
        tl.debug_barrier()
        tl.store(pending_a + pool, kept_a, mask=is_kept)
        tl.store(pending_b + pool, kept_b, mask=is_kept)

    last = tl.arange(0, PAST_BLOCK)  # the raw inputs that end with the anchor
    is_last = (last < NUM_PAST)[:, None] & is_channel[None, :]
    new_past = load_raw(
        new,
        pending,
        past,
        waiting + 1 - NUM_PAST + last,
        waiting,
        num_columns,
        channel,
        is_channel,
        row_stride,
        CONV_DIM,
        NUM_PAST,
    )
    kept_qkv = tl.load(
        new + (kept + 1)[:, None] * row_stride + channel[None, :],
        mask=is_kept[:, None] & is_channel[None, :],
        other=0.0,
    )
    tl.debug_barrier()
    tl.store(past + last[:, None] * CONV_DIM + channel[None, :], new_past, mask=is_last)
    tl.store(
        pending + kept[:, None] * CONV_DIM + channel[None, :],
        kept_qkv,
        mask=is_kept[:, None] & is_channel[None, :],
    )


def convolve(
    inputs: Inputs, weights: Weights, states: States, plan: BlockPlan, num_columns: int
) -> tuple[Tensor, Tensor]:
    """Heads and gates of each request's columns; moves the convolution's state to the anchor and keeps the block.

    Returns:
        Heads fp32 `[B, num_columns, conv_dim]`, [query | key | value] with norm and scale, undefined where a
        request has no such column; log decay and write strength fp32 `[B, Hv, 2, num_columns]`, 0 there.
    """
    num_value_heads, key_dim, value_dim = states.state.shape[1:]
    conv_dim, kernel = weights.conv_weight.shape
    batch, device = len(plan.slots), inputs.a.device
    heads = torch.empty((batch, num_columns, conv_dim), dtype=torch.float32, device=device)
    gates = torch.empty((batch, num_value_heads, 2, num_columns), dtype=torch.float32, device=device)
    _convolve_kernel[(2 * weights.num_key_heads + num_value_heads, batch)](
        *inputs,
        weights.conv_weight,
        weights.A_log,
        weights.dt_bias,
        states.conv_state,
        *states.pending,
        plan.row_starts,
        plan.slots,
        plan.num_pending,
        heads,
        gates,
        *(x.stride(0) for x in inputs),
        *weights.conv_weight.stride(),
        NUM_KEY_HEADS=weights.num_key_heads,
        NUM_VALUE_HEADS=num_value_heads,
        KEY_DIM=key_dim,
        VALUE_DIM=value_dim,
        BLOCK_D=triton.next_power_of_2(max(key_dim, value_dim)),
        KERNEL=kernel,
        MAX_PENDING=states.pending.a.shape[1],
        COLUMNS=num_columns,
        PAST_BLOCK=triton.next_power_of_2(kernel - 1),
        EPS=NORM_EPS,
        num_warps=_NUM_WARPS,
    )
    return heads, gates


def convolve_spec(num_columns: int) -> AotSpec:
    """At the dimensions of Qwen3.8-27B."""
    raw = ("mixed_qkv", "a", "b", "conv_state", "pending_qkv", "pending_a", "pending_b")
    strides = ("row_stride", "a_stride", "b_stride", "channel_stride", "tap_stride")
    return AotSpec(
        name=f"gated_delta 27B convolve {num_columns}",
        kernel=_convolve_kernel,
        signature=dict.fromkeys(raw, "*bf16")
        | dict.fromkeys(("conv_weight", "A_log", "dt_bias", "heads", "gates"), "*fp32")
        | dict.fromkeys(("row_starts", "slots", "num_pending"), "*i32")
        | dict.fromkeys(strides, "i32"),
        constexprs={
            "NUM_KEY_HEADS": 16,
            "NUM_VALUE_HEADS": 48,
            "KEY_DIM": 128,
            "VALUE_DIM": 128,
            "BLOCK_D": 128,
            "KERNEL": 4,
            "MAX_PENDING": 15,
            "COLUMNS": num_columns,
            "PAST_BLOCK": 4,
            "EPS": NORM_EPS,
        },
        num_warps=_NUM_WARPS,
        divisible_by_16=("row_stride", "a_stride", "b_stride", "tap_stride"),
    )
