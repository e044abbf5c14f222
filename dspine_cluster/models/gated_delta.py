"""The Gated DeltaNet layer: projections and gated norm around the recurrence that the cache runs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dspine_cluster.models.cache import Cache
from dspine_cluster.models.config import GatedDeltaConfig
from dspine_cluster.models.layers import GatedRMSNorm
from dspine_cluster.models.packing import Projections
from dspine_kernels.gated_delta import Inputs, Weights


class GatedDeltaNet(nn.Module):
    """`layer` counts Gated DeltaNet layers from 0."""

    def __init__(self, config: GatedDeltaConfig, hidden_size: int, eps: float, layer: int) -> None:
        super().__init__()
        self.config = config
        self.layer = layer
        self.in_proj_qkv = nn.Linear(hidden_size, config.conv_dim, bias=False)
        self.in_proj_z = nn.Linear(hidden_size, config.value_dim, bias=False)
        self.in_proj_a = nn.Linear(hidden_size, config.num_value_heads, bias=False)
        self.in_proj_b = nn.Linear(hidden_size, config.num_value_heads, bias=False)
        self.projections = Projections(self.in_proj_qkv, self.in_proj_z, self.in_proj_a, self.in_proj_b)
        # A Conv1d for its parameter's name and shape only: the cache convolves.
        self.conv1d = nn.Conv1d(
            config.conv_dim, config.conv_dim, config.conv_kernel, groups=config.conv_dim, bias=False
        )
        self.A_log = nn.Parameter(torch.zeros(config.num_value_heads))
        self.dt_bias = nn.Parameter(torch.ones(config.num_value_heads))
        self.norm = GatedRMSNorm(config.value_head_dim, eps)
        self.out_proj = nn.Linear(config.value_dim, hidden_size, bias=False)
        self._packed_weights: Weights | None = None

    def forward(self, x: Tensor, cache: Cache) -> Tensor:
        """`[num_tokens, hidden_size]` to the same."""
        weights = self._weights() if self._packed_weights is None else self._packed_weights
        mixed_qkv, gate, a, b = self.projections(x)
        mixed = cache.gated_delta(self.layer, Inputs(mixed_qkv, a, b), weights)
        # Both [num_tokens, num_value_heads, value_head_dim].
        out: Tensor = self.out_proj(self.norm(mixed, gate.view_as(mixed)).flatten(1))
        return out

    def pack(self) -> None:
        weights = self._weights()
        taps = weights.conv_weight.float().t().contiguous()  # the order in which they are read
        self._packed_weights = weights._replace(conv_weight=taps.t(), dt_bias=weights.dt_bias.float())

    def _weights(self) -> Weights:
        heads = self.config.num_key_heads, self.config.key_head_dim
        return Weights(self.conv1d.weight.squeeze(1), self.A_log, self.dt_bias, *heads)
