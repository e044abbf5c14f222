"""The chunk form of the gated delta rule (Yang et al., arXiv 2412.06464): N chunks of C tokens."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from dspine_kernels.gated_delta.heads import Heads

CHUNK_TOKENS = 64


def one_chunk(heads: Heads, state: Tensor, num_replayed: int) -> tuple[Tensor, Tensor]:
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


def chunked(heads: Heads, state: Tensor | None) -> tuple[Tensor, Tensor]:
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
