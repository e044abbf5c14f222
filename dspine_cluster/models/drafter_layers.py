"""Layers that `dspine` and `dflash` drafters share, and the projector that runs on the verifier."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from dspine_cluster.models.drafter_config import DrafterConfig
from dspine_cluster.models.layers import MLP, RMSNorm, Rotary
from dspine_kernels import kv_write
from dspine_kernels.kv_write import HeadTransform

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(query `[n, num_heads, head_dim]`, key, value `[n, num_kv_heads, head_dim]`) of all rows of a pass, normed and
rotated, to `[n, num_heads, head_dim]`."""


class FeatureProjector(nn.Module):
    """hidden_norm(fc(taps)): the target's tapped layers of a token to its features."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        num_taps = len(config.target_layer_ids)
        self.fc = nn.Linear(num_taps * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, taps: Tensor) -> Tensor:
        """Taps `[n, num_taps * hidden_size]` to features `[n, hidden_size]`."""
        features: Tensor = self.hidden_norm(self.fc(taps))
        return features


class DrafterAttention(nn.Module):
    """Attention whose keys come from projected features and from the block itself."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.query_shape = (config.num_heads, config.head_dim)
        self.key_shape = (config.num_kv_heads, config.head_dim)
        query_size = config.num_heads * config.head_dim
        key_size = config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, query_size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, key_size, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, key_size, bias=False)
        self.o_proj = nn.Linear(query_size, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def key_value(self, x: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """Keys, normed and rotated, and values of rows `[n, hidden_size]`; each `[n, num_kv_heads, head_dim]`."""
        key = self.k_proj(x).view(-1, *self.key_shape)
        value = self.v_proj(x).view(-1, *self.key_shape)
        return kv_write.place_keys(key, self._heads(rotary)), value

    def forward(self, x: Tensor, rotary: Rotary, attend: Attend) -> Tensor:
        query = self.q_proj(x).view(-1, *self.query_shape)
        key = self.k_proj(x).view(-1, *self.key_shape)
        value = self.v_proj(x).view(-1, *self.key_shape)
        query, key = kv_write.place(query, key, self._heads(rotary))
        out: Tensor = self.o_proj(attend(query, key, value).flatten(1))
        return out

    def _heads(self, rotary: Rotary) -> HeadTransform:
        return HeadTransform(self.q_norm.weight, self.k_norm.weight, self.q_norm.eps, True, *rotary)


class DrafterLayer(nn.Module):
    """Pre-norm attention and SwiGLU: `[n, hidden_size]` to `[n, hidden_size]`."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = DrafterAttention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config.hidden_size, config.intermediate_size)

    def forward(self, hidden: Tensor, rotary: Rotary, attend: Attend) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), rotary, attend)
        out: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out
