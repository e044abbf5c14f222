"""Full attention with per-head query and key norms, with (qwen3_5) or without (qwen3) an output gate."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dspine_cluster.models.cache import Cache
from dspine_cluster.models.config import TargetConfig
from dspine_cluster.models.layers import RMSNorm, Rotary, ZeroCentredRMSNorm
from dspine_cluster.models.packing import Projections
from dspine_kernels.kv_write import HeadTransform


class Attention(nn.Module):
    """Plain Qwen3 attention; `layer` counts full-attention layers from 0."""

    def __init__(self, config: TargetConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.head_dim = config.head_dim
        hidden, bias = config.hidden_size, config.attention_bias
        self.q_proj = nn.Linear(hidden, config.num_heads * config.head_dim, bias=bias)
        self.k_proj = nn.Linear(hidden, config.num_kv_heads * config.head_dim, bias=bias)
        self.v_proj = nn.Linear(hidden, config.num_kv_heads * config.head_dim, bias=bias)
        self.projections = Projections(self.q_proj, self.k_proj, self.v_proj)
        self.o_proj = nn.Linear(config.num_heads * config.head_dim, hidden, bias=bias)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def forward(self, x: Tensor, rotary: Rotary, cache: Cache) -> Tensor:
        """`[num_tokens, hidden_size]` to the same."""
        query, key, value = (_heads(part, self.head_dim) for part in self.projections(x))
        heads = HeadTransform(self.q_norm.weight, self.k_norm.weight, self.q_norm.eps, True, *rotary)
        out: Tensor = self.o_proj(cache.attend(self.layer, query, key, value, heads).flatten(1))
        return out


class GatedAttention(nn.Module):
    """Qwen3.5 attention: `q_proj` holds [query | gate] per head, and sigmoid(gate) scales the output."""

    def __init__(self, config: TargetConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.head_dim = config.head_dim
        hidden, bias = config.hidden_size, config.attention_bias
        self.q_proj = nn.Linear(hidden, config.num_heads * config.head_dim * 2, bias=bias)
        self.k_proj = nn.Linear(hidden, config.num_kv_heads * config.head_dim, bias=bias)
        self.v_proj = nn.Linear(hidden, config.num_kv_heads * config.head_dim, bias=bias)
        self.projections = Projections(self.q_proj, self.k_proj, self.v_proj)
        self.o_proj = nn.Linear(config.num_heads * config.head_dim, hidden, bias=bias)
        self.q_norm = ZeroCentredRMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = ZeroCentredRMSNorm(config.head_dim, config.rms_norm_eps)

    def forward(self, x: Tensor, rotary: Rotary, cache: Cache) -> Tensor:
        """`[num_tokens, hidden_size]` to the same."""
        query_gate, key, value = self.projections(x)
        # Each [num_tokens, num_heads, head_dim].
        query, gate = _heads(query_gate, 2 * self.head_dim).chunk(2, -1)
        key, value = _heads(key, self.head_dim), _heads(value, self.head_dim)
        heads = HeadTransform(self.q_norm.scale, self.k_norm.scale, self.q_norm.eps, False, *rotary)
        attended = cache.attend(self.layer, query, key, value, heads) * torch.sigmoid(gate)
        out: Tensor = self.o_proj(attended.flatten(1))
        return out


def _heads(x: Tensor, dim: int) -> Tensor:
    """`[num_tokens, num_heads * dim]` to `[num_tokens, num_heads, dim]`."""
    return x.view(x.shape[0], -1, dim)
