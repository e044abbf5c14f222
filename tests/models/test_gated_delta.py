from __future__ import annotations

import torch
from transformers import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

from dspine_cluster.models.cache import SequenceCache
from dspine_cluster.models.config import parse_target_config, write_target_config
from dspine_cluster.models.gated_delta import GatedDeltaNet
from tests.models.test_config import HYBRID

CONFIG = parse_target_config(HYBRID)


@torch.no_grad()
def test_the_layer_equals_transformers() -> None:
    assert CONFIG.gated_delta is not None
    reference = Qwen3_5GatedDeltaNet(Qwen3_5TextConfig(**write_target_config(CONFIG)), 0)
    random = torch.Generator().manual_seed(0)
    for parameter in reference.parameters():
        parameter.normal_(std=0.3, generator=random)
    layer = GatedDeltaNet(CONFIG.gated_delta, CONFIG.hidden_size, CONFIG.rms_norm_eps, 0)
    layer.load_state_dict(reference.state_dict())
    x = torch.randn(2, 75, CONFIG.hidden_size, generator=random)
    got = layer(x.flatten(0, 1), SequenceCache(2, 75)).view_as(x)
    assert (got - reference(x)).abs().max() < 1e-4
