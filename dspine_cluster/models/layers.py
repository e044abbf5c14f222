"""Norms, rotary embedding and MLP that targets and drafters share."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dspine_cluster.models.packing import Projections


class RMSNorm(nn.Module):
    """x / rms(x) * w over the last dim, fp32 up to the weight; `[..., dim]` to the same shape and dtype."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.shape, self.eps = (dim,), eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * F.rms_norm(x.float(), self.shape, None, self.eps).to(x.dtype)


class ZeroCentredRMSNorm(nn.Module):
    """x / rms(x) * (1 + w) over the last dim, in fp32; `[..., dim]` to the same shape and dtype."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.shape, self.eps = (dim,), eps
        self.weight = nn.Parameter(torch.zeros(dim))
        self._packed_scale: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.shape, self.scale, self.eps).to(x.dtype)

    @property
    def scale(self) -> Tensor:
        """1 + w, fp32."""
        return 1.0 + self.weight.float() if self._packed_scale is None else self._packed_scale

    def pack(self) -> None:
        self._packed_scale = self.scale


class GatedRMSNorm(nn.Module):
    """x / rms(x) * w * silu(gate), normalised before the gate; x and gate `[..., dim]` to the same shape."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.shape, self.eps = (dim,), eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        normed = self.weight * F.rms_norm(x.float(), self.shape, None, self.eps).to(x.dtype)
        return (normed * F.silu(gate.float())).to(x.dtype)


class MLP(nn.Module):
    """SwiGLU: `[n, hidden_size]` to `[n, hidden_size]`."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)
        self.projections = Projections(self.gate_proj, self.up_proj)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.projections(x)
        out: Tensor = self.down_proj(F.silu(gate) * up)
        return out


class Rotary(NamedTuple):
    """Angles of a pass, in the activation dtype, for `dspine_kernels.kv_write`."""

    cos: Tensor  # [num_tokens, 1, rotary_dim / 2]
    sin: Tensor  # [num_tokens, 1, rotary_dim / 2]

    @classmethod
    def at(cls, positions: Tensor, rotary_dim: int, theta: float, dtype: torch.dtype) -> Rotary:
        """Angles at absolute `positions` `[num_tokens]` (int64)."""
        frequencies = _frequencies(rotary_dim, theta, positions.device)
        angles = (positions[:, None].float() * frequencies).unsqueeze(1)
        return cls(angles.cos().to(dtype), angles.sin().to(dtype))


@functools.lru_cache(maxsize=16)
def _frequencies(rotary_dim: int, theta: float, device: torch.device) -> Tensor:
    with torch.inference_mode(False), torch.device(device):
        exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
        return 1.0 / theta**exponents  # [rotary_dim / 2]
