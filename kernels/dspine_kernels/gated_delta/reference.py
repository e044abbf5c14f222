"""Plain torch gated delta rule (Yang et al., arXiv 2412.06464, chunk form): differentiable, the path on CPUs.

Names of dimensions: B requests, T tokens, Hk key heads, Hv value heads, G = Hv / Hk value heads a key head,
Dk and Dv head dims, N chunks of C tokens. The inputs are *raw*: `mixed_qkv` before the convolution, `a` and `b`
before their gates, so that a pass can be replayed from what it was given.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK_TOKENS = 64
NORM_EPS = 1e-6


class _Heads(NamedTuple):
    """Inputs of the delta rule, fp32, key heads kept apart from the G value heads that share them."""

    query: Tensor  # [B, Hk, 1, T, Dk], normalised and scaled
    key: Tensor  # [B, Hk, 1, T, Dk], normalised
    value: Tensor  # [B, Hk, G, T, Dv]
    log_decay: Tensor  # [B, Hk, G, T]
    beta: Tensor  # [B, Hk, G, T]


def prefill(
    mixed_qkv: Tensor,
    a: Tensor,
    b: Tensor,
    conv_weight: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    *,
    num_key_heads: int,
    key_head_dim: int,
    state: Tensor | None = None,
    conv_state: Tensor | None = None,
    lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run many tokens of each request and advance its state.

    Args:
        mixed_qkv: `[B, T, 2 * Hk * Dk + Hv * Dv]`, raw [query | key | value], right-padded.
        a, b: `[B, T, Hv]`, raw inputs of decay and write strength.
        conv_weight: `[conv_dim, kernel]`, depthwise.
        A_log, dt_bias: `[Hv]`.
        state: `[B, Hv, Dk, Dv]` fp32 before the first token; None is an empty past.
        conv_state: `[B, kernel - 1, conv_dim]`, the raw inputs before the first token; None is an empty past.
        lengths: `[B]` int, valid tokens a row. The rest never touches the state; its outputs are finite.

    Returns:
        Output `[B, T, Hv, Dv]` in the dtype of `mixed_qkv`, then state and convolution state after each
        row's last valid token (new tensors).
    """
    batch, num_tokens, _ = mixed_qkv.shape
    if padding := -num_tokens % CHUNK_TOKENS:
        # Whole chunks always: else the last bits of a row depend on how long the longest one beside it is.
        mixed_qkv, a, b = (F.pad(x, (0, 0, 0, padding)) for x in (mixed_qkv, a, b))
        lengths = torch.full((batch,), num_tokens, device=a.device) if lengths is None else lengths
    if lengths is not None:
        mixed_qkv, a, b = (_zero_beyond(x, lengths) for x in (mixed_qkv, a, b))
    num_past = conv_weight.shape[1] - 1
    window = _with_past(mixed_qkv, conv_state, num_past)  # [B, num_past + T, conv_dim]
    with torch.autocast(mixed_qkv.device.type, enabled=False):
        log_decay, beta = _gates(a, b, A_log, dt_bias)
        if lengths is not None:
            log_decay, beta = _zero_beyond(log_decay, lengths), _zero_beyond(beta, lengths)
        heads = _split_heads(_convolve(window, conv_weight), log_decay, beta, num_key_heads, key_head_dim)
        out, new_state = _chunked(heads, state)
    new_conv_state = _last_inputs(window, num_past, lengths)
    return out[:, :num_tokens].to(mixed_qkv.dtype), new_state, new_conv_state


def verify(
    mixed_qkv: Tensor,
    a: Tensor,
    b: Tensor,
    conv_weight: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    *,
    num_key_heads: int,
    key_head_dim: int,
    state: Tensor,
    conv_state: Tensor,
    pending_qkv: Tensor,
    pending_a: Tensor,
    pending_b: Tensor,
    num_pending: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs for a block of an anchor and W - 1 proposals, after replaying an earlier pass's accepted proposals.

    `state` and `conv_state` lie before the pending inputs. Row i rolls them forward by its first `num_pending[i]`
    (0..P) pending inputs and by its anchor, which is committed whatever becomes of the proposals, in the closed form
    S' = S e^{G_n} + sum_{i<=n} e^{G_n - G_i} k_i v_i^T, in the same pass that computes the outputs. Cost grows
    with P + W: pass no more pending columns than the batch uses; `decode` does the same for W = 1 and P = 0.

    Args:
        mixed_qkv: `[B, W, conv_dim]`; a, b: `[B, W, Hv]`: the blocks, raw, anchor first. Rows with fewer tokens are
            right-padded with anything finite: no output depends on a later token.
        state: `[B, Hv, Dk, Dv]` fp32; conv_state: `[B, kernel - 1, conv_dim]`.
        pending_qkv: `[B, P, conv_dim]`; pending_a, pending_b: `[B, P, Hv]`; P may be 0.
        num_pending: `[B]` int.

    Returns:
        Output `[B, W, Hv, Dv]` in the dtype of `mixed_qkv`, then state and convolution state after the
        anchor (new tensors).
    """
    num_columns, num_past = pending_qkv.shape[1], conv_state.shape[1]
    past = conv_state  # the raw inputs before the anchor: [B, num_past, conv_dim]
    if num_columns == 0:
        mixed = _convolve_block(torch.cat((past, mixed_qkv), 1), conv_weight)
    else:
        replayed = torch.cat((conv_state, pending_qkv), 1)
        past = _last_inputs(replayed, num_past, num_pending)
        convolved = _convolve_block(torch.cat((replayed, past, mixed_qkv), 1), conv_weight)
        # num_past columns between pending and new tokens mean nothing.
        mixed = torch.cat((convolved[:, :num_columns], convolved[:, num_columns + num_past :]), 1)
        # Minus infinity gives log decay 0 and write strength 0: pending inputs that were rejected change nothing.
        rejected = torch.arange(num_columns, device=past.device) >= num_pending[:, None]  # [B, P]
        pending = torch.cat((pending_a, pending_b), -1).masked_fill(rejected[..., None], float("-inf"))
        a, b = torch.cat((pending, torch.cat((a, b), -1)), 1).chunk(2, -1)  # each [B, P + W, Hv]
    log_decay, beta = _gates(a, b, A_log, dt_bias)
    heads = _split_heads(mixed, log_decay, beta, num_key_heads, key_head_dim)
    out, new_state = _one_chunk(heads, state, num_columns)
    new_conv_state = torch.cat((past[:, 1:], mixed_qkv[:, :1]), 1)
    return out.to(mixed_qkv.dtype), new_state, new_conv_state


def decode(
    mixed_qkv: Tensor,
    a: Tensor,
    b: Tensor,
    conv_weight: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    *,
    num_key_heads: int,
    key_head_dim: int,
    state: Tensor,
    conv_state: Tensor,
) -> Tensor:
    """One token of each request with nothing pending: one step of the recurrence, **in place**.

    Args:
        mixed_qkv: `[B, conv_dim]`; a, b: `[B, Hv]`, raw.
        state: `[B, Hv, Dk, Dv]` fp32, contiguous; conv_state: `[B, kernel - 1, conv_dim]`. Both move on by the token.

    Returns:
        Output `[B, Hv, Dv]` in the dtype of `mixed_qkv`.
    """
    batch, num_value_heads, key_dim, value_dim = state.shape
    window = torch.cat((conv_state, mixed_qkv.unsqueeze(1)), 1)  # [B, kernel, conv_dim]
    conv_state.copy_(window[:, 1:])
    mixed = F.silu((window.float() * conv_weight.float().t()).sum(1))  # [B, conv_dim]
    query_key_dim = 2 * num_key_heads * key_head_dim
    query_key, value = mixed.split_with_sizes([query_key_dim, mixed.shape[1] - query_key_dim], -1)
    query_key = _l2_normalised(query_key.view(batch, 2, num_key_heads, 1, key_dim)).transpose(0, 1)
    num_groups = num_value_heads // num_key_heads
    per_value_head = query_key.expand(-1, -1, -1, num_groups, -1)
    query, key = per_value_head.reshape(2, -1, 1, key_dim)  # [B * Hv, 1, Dk] each
    log_decay, beta = _gates(a, b, A_log, dt_bias)
    now = state.view(-1, key_dim, value_dim).mul_(log_decay.exp().view(-1, 1, 1))  # [B * Hv, Dk, Dv]
    written = (value.reshape(-1, 1, value_dim) - torch.bmm(key, now)) * beta.view(-1, 1, 1)
    now.addcmul_(key.mT, written)
    out: Tensor = torch.bmm(query, now) * key_dim**-0.5
    return out.view(batch, num_value_heads, value_dim).to(mixed_qkv.dtype)


def _l2_normalised(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + NORM_EPS)


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


def _convolve(window: Tensor, weight: Tensor) -> Tensor:
    """Depthwise causal convolution and SiLU: `[B, kernel - 1 + T, conv_dim]` to fp32 `[B, T, conv_dim]`."""
    kernel = weight.shape[1]
    num_tokens = window.shape[1] - kernel + 1
    window = window.float()
    taps = weight.float().t().contiguous()  # [kernel, conv_dim]
    out = window[:, :num_tokens] * taps[0]
    for tap in range(1, kernel):
        out = torch.addcmul(out, window[:, tap : tap + num_tokens], taps[tap])
    return F.silu(out)


def _convolve_block(window: Tensor, weight: Tensor) -> Tensor:
    """As `_convolve`, in fewer steps that read more: faster for a few tokens."""
    kernel = weight.shape[1]
    taps = weight.float().t().contiguous()  # [kernel, conv_dim]
    return F.silu((window.float().unfold(1, kernel, 1).mT * taps).sum(2))


def _gates(a: Tensor, b: Tensor, A_log: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    """Log decay -exp(A_log) softplus(a + dt_bias) <= 0 and write strength sigmoid(b), both fp32 `[B, T, Hv]`."""
    log_decay = -A_log.float().exp() * F.softplus(a.float() + dt_bias.float())
    return log_decay, b.float().sigmoid()


def _split_heads(
    mixed: Tensor, log_decay: Tensor, beta: Tensor, num_key_heads: int, key_head_dim: int
) -> _Heads:
    batch, num_tokens, conv_dim = mixed.shape
    query_key_dim = 2 * num_key_heads * key_head_dim
    num_groups = log_decay.shape[2] // num_key_heads
    query_key, value = mixed.split_with_sizes([query_key_dim, conv_dim - query_key_dim], -1)
    query_key = query_key.view(batch, num_tokens, 2, num_key_heads, key_head_dim)
    query, key = _l2_normalised(query_key).permute(2, 0, 3, 1, 4).unbind(0)  # each [B, Hk, T, Dk]
    value = value.view(batch, num_tokens, num_key_heads, num_groups, -1).permute(0, 2, 3, 1, 4)
    by_head = (batch, num_tokens, num_key_heads, num_groups)
    return _Heads(
        query=(query * key_head_dim**-0.5).unsqueeze(2),
        key=key.unsqueeze(2),
        value=value,
        log_decay=log_decay.view(by_head).permute(0, 2, 3, 1),
        beta=beta.view(by_head).permute(0, 2, 3, 1),
    )


@functools.lru_cache(maxsize=64)
def _future(size: int, device: torch.device) -> Tensor:
    """`[size, size]` fp32, minus infinity above the diagonal and 0 elsewhere."""
    with torch.inference_mode(False):
        return torch.full((size, size), float("-inf"), device=device).triu(1)


def _pairwise_decay(total: Tensor) -> Tensor:
    """exp(G_i - G_j) for j <= i, else 0: `[..., C]` cumulative log decay to `[..., C, C]`."""
    return (total.unsqueeze(-1) - total.unsqueeze(-2) + _future(total.shape[-1], total.device)).exp()


def _solve_unit_lower(system: Tensor, wanted: Tensor) -> Tensor:
    """X of (I + strict lower part of `system`) X = `wanted`; transposed, for LAPACK's order then needs no copy."""
    solved: Tensor = torch.linalg.solve_triangular(
        system.mT, wanted.mT, upper=True, left=False, unitriangular=True
    )
    return solved.mT


def _one_chunk(heads: _Heads, state: Tensor, num_replayed: int) -> tuple[Tensor, Tensor]:
    """All tokens in one chunk: outputs after the first `num_replayed` tokens, state after one token more."""
    query, key, value, log_decay, beta = heads
    batch, num_key_heads, num_groups, num_tokens, value_dim = value.shape
    past = state.view(batch, num_key_heads, num_groups, -1, value_dim)
    total = log_decay.cumsum(-1)  # [B, Hk, G, T]
    decay = _pairwise_decay(total)  # [B, Hk, G, T, T]
    from_past = total.exp().unsqueeze(-1)  # [B, Hk, G, T, 1]
    readers = torch.cat((key, query[..., num_replayed:, :]), -2)  # [B, Hk, 1, T + W, Dk]
    reads = readers @ past  # [B, Hk, G, T + W, Dv]
    products = readers @ key.mT  # [B, Hk, 1, T + W, T]
    strength = beta.unsqueeze(-1)
    system = products[..., :num_tokens, :] * (decay * strength)
    wanted = (value - from_past * reads[..., :num_tokens, :]) * strength
    written = _solve_unit_lower(system, wanted)  # [B, Hk, G, T, Dv]
    attention = products[..., num_tokens:, :] * decay[..., num_replayed:, :]
    out = from_past[..., num_replayed:, :] * reads[..., num_tokens:, :] + attention @ written
    out = out.permute(0, 3, 1, 2, 4).reshape(batch, num_tokens - num_replayed, -1, value_dim)
    num_kept = num_replayed + 1
    kept = written[..., :num_kept, :] * decay[..., num_replayed, :num_kept].unsqueeze(-1)
    new_state = past * from_past[..., num_replayed:num_kept, :] + key[..., :num_kept, :].mT @ kept
    return out, new_state.view_as(state)


def _chunk(x: Tensor, size: int) -> Tensor:
    """`[B, Hk, G, T, ...]` to `[B, Hk, G, T / size, size, ...]`."""
    return x.reshape(*x.shape[:3], -1, size, *x.shape[4:])


def _chunked(heads: _Heads, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """All tokens in whole chunks: outputs `[B, T, Hv, Dv]` and the state after the last token."""
    batch, num_key_heads, num_groups, num_tokens, value_dim = heads.value.shape
    query, key, value, log_decay, beta = (_chunk(x, CHUNK_TOKENS) for x in heads)
    total = log_decay.cumsum(-1)  # [B, Hk, G, N, C]
    decay = _pairwise_decay(total)  # [B, Hk, G, N, C, C]
    from_past = total.exp().unsqueeze(-1)
    to_end = (total[..., -1:] - total).exp().unsqueeze(-1)
    system = (key @ key.mT) * (decay * beta.unsqueeze(-1))
    wanted = torch.cat((value, key * from_past), -1) * beta.unsqueeze(-1)  # [B, Hk, G, N, C, Dv + Dk]
    solved = _solve_unit_lower(system, wanted)
    values, reads = torch.split(solved, [value_dim, key.shape[-1]], -1)
    keys_to_end = (key * to_end).mT  # [B, Hk, G, N, Dk, C]
    chunk_decay = from_past[..., -1:, :]  # [B, Hk, G, N, 1, 1]

    if state is None:
        now = value.new_zeros(batch, num_key_heads, num_groups, key.shape[-1], value_dim)
    else:
        now = state.view(batch, num_key_heads, num_groups, -1, value_dim)
    pasts, writes = [], []
    chunks = zip(*(x.unbind(3) for x in (values, reads, keys_to_end, chunk_decay)), strict=True)
    for value_chunk, read, key_to_end, decay_chunk in chunks:
        pasts.append(now)
        writes.append(value_chunk - read @ now)
        now = now * decay_chunk + key_to_end @ writes[-1]
    past, written = torch.stack(pasts, 3), torch.stack(writes, 3)  # [B, Hk, G, N, Dk | C, Dv]
    out = (query * from_past) @ past + ((query @ key.mT) * decay) @ written
    out = out.flatten(3, 4).permute(0, 3, 1, 2, 4)
    return out.reshape(batch, num_tokens, -1, value_dim), now.flatten(1, 2)
