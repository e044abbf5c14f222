"""Plain torch gated delta rule: differentiable, the path on CPUs. States are given and returned, requests are rows."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from dspine_kernels.gated_delta.chunk_form import CHUNK_TOKENS, chunked, one_chunk
from dspine_kernels.gated_delta.heads import (
    Heads,
    convolve,
    convolve_block,
    gates,
    l2_normalised,
    split_heads,
)
from dspine_kernels.gated_delta.layer import Inputs, Weights

ChunkForm = Callable[[Heads, Tensor | None], tuple[Tensor, Tensor]]
"""Whole chunks of tokens after a state: outputs `[B, T, Hv, Dv]` and the state after the last token."""


def prefill(
    inputs: Inputs,
    weights: Weights,
    *,
    state: Tensor | None = None,
    conv_state: Tensor | None = None,
    lengths: Tensor | None = None,
    chunk_form: ChunkForm = chunked,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run many tokens of each request and advance its state.

    Args:
        inputs: `[B, T, ...]`, right-padded.
        state: `[B, Hv, Dk, Dv]` fp32 before the first token; None is an empty past.
        conv_state: `[B, kernel - 1, conv_dim]`, the raw inputs before the first token; None is an empty past.
        lengths: `[B]` int, valid tokens a row. The rest never touches the state; its outputs are finite.
        chunk_form: computes the recurrence.

    Returns:
        Output `[B, T, Hv, Dv]` in the dtype of `mixed_qkv`, then state and convolution state after each
        row's last valid token (new tensors).
    """
    batch, num_tokens, _ = inputs.mixed_qkv.shape
    if padding := -num_tokens % CHUNK_TOKENS:
        # Whole chunks always: else the last bits of a row depend on how long the longest one beside it is.
        inputs = inputs.map(lambda x: F.pad(x, (0, 0, 0, padding)))
        if lengths is None:
            lengths = torch.full((batch,), num_tokens, device=inputs.a.device)
    if lengths is not None:
        valid_lengths = lengths
        inputs = inputs.map(lambda x: _zero_beyond(x, valid_lengths))
    mixed_qkv, a, b = inputs
    num_past = weights.conv_weight.shape[1] - 1
    window = _with_past(mixed_qkv, conv_state, num_past)  # [B, num_past + T, conv_dim]
    with torch.autocast(mixed_qkv.device.type, enabled=False):
        log_decay, beta = gates(a, b, weights)
        if lengths is not None:
            log_decay, beta = _zero_beyond(log_decay, lengths), _zero_beyond(beta, lengths)
        heads = split_heads(convolve(window, weights.conv_weight), log_decay, beta, weights)
        out, new_state = chunk_form(heads, state)
    new_conv_state = _last_inputs(window, num_past, lengths)
    return out[:, :num_tokens].to(mixed_qkv.dtype), new_state, new_conv_state


def verify(
    inputs: Inputs,
    weights: Weights,
    *,
    state: Tensor,
    conv_state: Tensor,
    pending: Inputs,
    num_pending: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs for a block of an anchor and W - 1 proposals, after replaying an earlier pass's accepted proposals.

    `state` and `conv_state` lie before the pending inputs. Row i rolls them forward by its first `num_pending[i]`
    (0..P) pending inputs and by its anchor, which is committed whatever becomes of the proposals, in the closed form
    S' = S e^{G_n} + sum_{i<=n} e^{G_n - G_i} k_i v_i^T, in the same pass that computes the outputs. Cost grows
    with P + W: pass no more pending columns than the batch uses; `decode` does the same for W = 1 and P = 0.

    Args:
        inputs: `[B, W, ...]`, the blocks, anchor first. Rows with fewer tokens are right-padded with anything
            finite: no output depends on a later token.
        state: `[B, Hv, Dk, Dv]` fp32; conv_state: `[B, kernel - 1, conv_dim]`.
        pending: `[B, P, ...]`; P may be 0.
        num_pending: `[B]` int.

    Returns:
        Output `[B, W, Hv, Dv]` in the dtype of `mixed_qkv`, then state and convolution state after the
        anchor (new tensors).
    """
    mixed_qkv, a, b = inputs
    num_columns, num_past = pending.mixed_qkv.shape[1], conv_state.shape[1]
    past = conv_state  # the raw inputs before the anchor: [B, num_past, conv_dim]
    if num_columns == 0:
        mixed = convolve_block(torch.cat((past, mixed_qkv), 1), weights.conv_weight)
    else:
        replayed = torch.cat((conv_state, pending.mixed_qkv), 1)
        past = _last_inputs(replayed, num_past, num_pending)
        convolved = convolve_block(torch.cat((replayed, past, mixed_qkv), 1), weights.conv_weight)
        # num_past columns between pending and new tokens mean nothing.
        mixed = torch.cat((convolved[:, :num_columns], convolved[:, num_columns + num_past :]), 1)
        # Minus infinity gives log decay 0 and write strength 0: pending inputs that were rejected change nothing.
        rejected = torch.arange(num_columns, device=past.device) >= num_pending[:, None]  # [B, P]
        replayed_gates = torch.cat((pending.a, pending.b), -1)
        replayed_gates = replayed_gates.masked_fill(rejected[..., None], float("-inf"))
        # Each [B, P + W, Hv].
        a, b = torch.cat((replayed_gates, torch.cat((a, b), -1)), 1).chunk(2, -1)
    log_decay, beta = gates(a, b, weights)
    out, new_state = one_chunk(split_heads(mixed, log_decay, beta, weights), state, num_columns)
    new_conv_state = torch.cat((past[:, 1:], mixed_qkv[:, :1]), 1)
    return out.to(mixed_qkv.dtype), new_state, new_conv_state


def decode(inputs: Inputs, weights: Weights, *, state: Tensor, conv_state: Tensor) -> Tensor:
    """One token of each request with nothing pending: one step of the recurrence, **in place**.

    Args:
        inputs: `[B, ...]`.
        state: `[B, Hv, Dk, Dv]` fp32, contiguous; conv_state: `[B, kernel - 1, conv_dim]`. Both move on by the token.

    Returns:
        Output `[B, Hv, Dv]` in the dtype of `mixed_qkv`.
    """
    mixed_qkv, a, b = inputs
    batch, num_value_heads, key_dim, value_dim = state.shape
    window = torch.cat((conv_state, mixed_qkv.unsqueeze(1)), 1)  # [B, kernel, conv_dim]
    conv_state.copy_(window[:, 1:])
    mixed = F.silu((window.float() * weights.conv_weight.float().t()).sum(1))  # [B, conv_dim]
    query_key_dim = 2 * weights.num_key_heads * key_dim
    query_key, value = mixed.split_with_sizes([query_key_dim, mixed.shape[1] - query_key_dim], -1)
    query_key = l2_normalised(query_key.view(batch, 2, weights.num_key_heads, 1, key_dim)).transpose(0, 1)
    num_groups = num_value_heads // weights.num_key_heads
    per_value_head = query_key.expand(-1, -1, -1, num_groups, -1)
    query, key = per_value_head.reshape(2, -1, 1, key_dim)  # [B * Hv, 1, Dk] each
    log_decay, beta = gates(a, b, weights)
    now = state.view(-1, key_dim, value_dim).mul_(log_decay.exp().view(-1, 1, 1))  # [B * Hv, Dk, Dv]
    written = (value.reshape(-1, 1, value_dim) - torch.bmm(key, now)) * beta.view(-1, 1, 1)
    now.addcmul_(key.mT, written)
    out: Tensor = torch.bmm(query, now) * key_dim**-0.5
    return out.view(batch, num_value_heads, value_dim).to(mixed_qkv.dtype)


def _zero_beyond(x: Tensor, lengths: Tensor) -> Tensor:
    """`x` `[B, T, ...]` with everything at or beyond each row's length replaced by zero."""
    valid = torch.arange(x.shape[1], device=x.device) < lengths[:, None]  # [B, T]
    return x.masked_fill(~valid[..., None], 0.0)


def _with_past(mixed_qkv: Tensor, conv_state: Tensor | None, num_past: int) -> Tensor:
    if conv_state is None:
        return F.pad(mixed_qkv, (0, 0, num_past, 0))
    return torch.cat((conv_state.to(mixed_qkv.dtype), mixed_qkv), 1)


def _last_inputs(window: Tensor, num_past: int, lengths: Tensor | None) -> Tensor:
    """The `num_past` raw inputs that end at each row's last valid token: `[B, num_past, conv_dim]`."""
    if lengths is None:
        return window[:, window.shape[1] - num_past :]
    index = lengths[:, None] + torch.arange(num_past, device=window.device)  # [B, num_past]
    return window.gather(1, index[..., None].expand(-1, -1, window.shape[2]))
