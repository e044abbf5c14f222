"""Norm and rotation of heads with what depends on positions and weights alone made ready for all layers at once."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from dspine_cluster.models.drafter_config import DrafterConfig
from dspine_cluster.models.layers import Rotary

_FIRST_POSITIONS = 1024


class RotaryTables(NamedTuple):
    """Factors of each head element and of its partner in the other half."""

    own: Tensor  # [num_rows, num_layers, num_heads, head_dim]; broadcasts over heads
    partner: Tensor  # as `own`

    def of_layer(self, layer: int) -> RotaryTables:
        """`[num_rows, num_heads, head_dim]` each."""
        return RotaryTables(self.own[:, layer], self.partner[:, layer])


class PackedRotary:
    """x / rms(x) * scale, rotated to its position, for heads whose rotation covers all of `head_dim`."""

    def __init__(self, config: DrafterConfig, scales: Tensor) -> None:
        """`scales` are the norms' weights, `[num_layers, num_heads or 1, head_dim]`."""
        self._config = config
        half = config.head_dim // 2
        scales = scales * math.sqrt(config.head_dim)
        self._own = scales
        self._partner = torch.cat((-scales[..., half:], scales[..., :half]), -1)
        self._floor = torch.tensor(math.sqrt(config.rms_norm_eps * config.head_dim))
        self._half = half
        self._cos = self._sin = torch.empty(0, config.head_dim)

    def tables(self, positions: Tensor) -> RotaryTables:
        """For rows at absolute positions int64 `[num_rows]`."""
        highest = int(positions.max())
        if highest >= len(self._cos):
            self._extend(max(_FIRST_POSITIONS, 1 << highest.bit_length()))
        shape = (len(positions), 1, 1, -1)
        cos = self._cos.index_select(0, positions).view(shape)
        sin = self._sin.index_select(0, positions).view(shape)
        return RotaryTables(cos * self._own, sin * self._partner)

    def place(self, heads: Tensor, tables: RotaryTables) -> Tensor:
        """Projected heads `[..., num_heads, head_dim]` to the same, normed and rotated."""
        length: Tensor = torch.linalg.vector_norm(heads, dim=-1, keepdim=True)
        normed = heads / length.hypot(self._floor)
        return (normed * tables.own).addcmul_(normed.roll(self._half, -1), tables.partner)

    def _extend(self, num_positions: int) -> None:
        config = self._config
        angles = Rotary.at(torch.arange(num_positions), config.head_dim, config.rope_theta, torch.float32)
        self._cos, self._sin = (torch.cat((x, x), -1).squeeze(1) for x in angles)
