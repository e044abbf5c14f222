from __future__ import annotations

import torch

from dspine_cluster.models.drafter_init import build_feature_projector
from tests.models.drafter_cases import rms, small_config


def test_features_are_the_normed_projection_of_the_taps() -> None:
    config = small_config()
    projector = build_feature_projector(config, seed=0).requires_grad_(False)
    projector.hidden_norm.weight.uniform_(0.5, 1.5)
    taps = torch.randn(5, len(config.target_layer_ids) * config.hidden_size)
    expected = rms(taps @ projector.fc.weight.T, projector.hidden_norm.weight, config)
    torch.testing.assert_close(projector(taps), expected)
