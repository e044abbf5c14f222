"""Targets with random weights."""

from __future__ import annotations

import torch

from dspine_cluster.models.architecture import make_target
from dspine_cluster.models.config import TargetConfig
from dspine_cluster.models.target import TargetModel


def build_target(config: TargetConfig, *, seed: int, std: float = 0.02) -> TargetModel:
    """In fp32: matrices normal with `std`, decay rates uniform in (0.01, 16), norms the identity."""
    model = make_target(config)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".A_log"):
                parameter.uniform_(0.01, 16.0, generator=random).log_()
            elif parameter.ndim > 1:
                parameter.normal_(std=std, generator=random)
    return model
