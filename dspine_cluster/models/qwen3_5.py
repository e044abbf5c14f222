"""The hybrid target: Gated DeltaNet layers with a gated full-attention layer every few."""

from __future__ import annotations

from torch import Tensor, nn

from dspine_cluster.models.attention import GatedAttention
from dspine_cluster.models.cache import Cache
from dspine_cluster.models.config import FULL_ATTENTION, TargetConfig
from dspine_cluster.models.gated_delta import GatedDeltaNet
from dspine_cluster.models.layers import MLP, Rotary, ZeroCentredRMSNorm
from dspine_cluster.models.target import TargetModel


class HybridAttentionLayer(nn.Module):
    """Gated full attention and MLP; `layer` counts full-attention layers."""

    def __init__(self, config: TargetConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = ZeroCentredRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = GatedAttention(config, layer)
        self.post_attention_layernorm = ZeroCentredRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config.hidden_size, config.intermediate_size)

    def forward(self, hidden: Tensor, rotary: Rotary, cache: Cache) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), rotary, cache)
        out: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


class HybridDeltaLayer(nn.Module):
    """Gated DeltaNet and MLP; `layer` counts Gated DeltaNet layers."""

    def __init__(self, config: TargetConfig, layer: int) -> None:
        super().__init__()
        assert config.gated_delta is not None
        self.input_layernorm = ZeroCentredRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.linear_attn = GatedDeltaNet(config.gated_delta, config.hidden_size, config.rms_norm_eps, layer)
        self.post_attention_layernorm = ZeroCentredRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config.hidden_size, config.intermediate_size)

    def forward(self, hidden: Tensor, rotary: Rotary, cache: Cache) -> Tensor:
        hidden = hidden + self.linear_attn(self.input_layernorm(hidden), cache)
        out: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


def make_qwen3_5(config: TargetConfig) -> TargetModel:
    """An uninitialised hybrid target."""
    layers: list[nn.Module] = []
    for number, layer_type in enumerate(config.layer_types):
        kind = config.layer_types[:number].count(layer_type)
        is_full = layer_type == FULL_ATTENTION
        layers.append(HybridAttentionLayer(config, kind) if is_full else HybridDeltaLayer(config, kind))
    return TargetModel(config, layers, ZeroCentredRMSNorm(config.hidden_size, config.rms_norm_eps))
