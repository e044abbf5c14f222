"""The dense target: full attention in every layer."""

from __future__ import annotations

from torch import Tensor, nn

from dspine_cluster.models.attention import Attention
from dspine_cluster.models.cache import Cache
from dspine_cluster.models.config import TargetConfig
from dspine_cluster.models.layers import MLP, RMSNorm, Rotary
from dspine_cluster.models.target import TargetModel


class Qwen3Layer(nn.Module):
    """Full attention and MLP; `layer` counts layers from 0."""

    def __init__(self, config: TargetConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config.hidden_size, config.intermediate_size)

    def forward(self, hidden: Tensor, rotary: Rotary, cache: Cache) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), rotary, cache)
        out: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


def make_qwen3(config: TargetConfig) -> TargetModel:
    """An uninitialised dense target."""
    layers = [Qwen3Layer(config, layer) for layer in range(config.num_layers)]
    return TargetModel(config, layers, RMSNorm(config.hidden_size, config.rms_norm_eps))
