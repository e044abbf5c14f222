"""The pairs that `gpu_round` measures: published dimensions, random weights made on the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dspine_cluster.models.architecture import make_target
from dspine_cluster.models.config import TargetConfig, parse_target_config
from dspine_cluster.models.drafter_config import DrafterConfig, parse_drafter_config
from dspine_cluster.models.drafter_init import make_drafter
from dspine_cluster.models.drafter_layers import FeatureProjector
from dspine_cluster.models.dspine import DSpine
from dspine_cluster.models.layers import ZeroCentredRMSNorm
from dspine_cluster.models.packing import pack_weights
from dspine_cluster.models.target import TargetModel

QWEN3_8_27B: Mapping[str, Any] = {
    "model_type": "qwen3_5_text",
    "vocab_size": 248320,
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_hidden_layers": 64,
    "full_attention_interval": 4,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "rope_theta": 1e7,
    "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 262144,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
QWEN3_8B: Mapping[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 40960,
}
_DRAFTER: Mapping[str, Any] = {
    "model_type": "qwen3",
    "num_hidden_layers": 5,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "block_size": 16,
    "dspine_config": {"transfer_rank": 1024, "message_size": 512, "top_k": 16},
}
DSPINE_27B: Mapping[str, Any] = {
    **_DRAFTER,
    "vocab_size": 248320,
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "rope_theta": 1e7,
    "dflash_config": {"mask_token_id": 248070, "target_layer_ids": [1, 16, 31, 46, 61]},
    "layer_types": ["sliding_attention"] * 5,
    "sliding_window": 8192,
}
DSPINE_8B: Mapping[str, Any] = {
    **_DRAFTER,
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "rope_theta": 1e6,
    "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
    "layer_types": ["full_attention"] * 5,
    "sliding_window": None,
}
_TINY: Mapping[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
_TINY_DELTA: Mapping[str, Any] = {
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}


@dataclass(frozen=True, slots=True)
class PairConfig:
    """A target and its drafter."""

    name: str
    target: TargetConfig
    drafter: DrafterConfig


@dataclass(frozen=True, slots=True)
class Pair:
    """A pair with weights; the drafter shares the target's embedding and head."""

    config: PairConfig
    target: TargetModel
    projector: FeatureProjector
    drafter: DSpine


def pair_config(name: str, *, tiny: bool = False) -> PairConfig:
    """`27b` (hybrid) or `8b` (dense) at its published dimensions, or shrunk to what a CPU runs at once."""
    target, drafter = {"27b": (QWEN3_8_27B, DSPINE_27B), "8b": (QWEN3_8B, DSPINE_8B)}[name]
    if tiny:
        shrunk = {**_TINY, "num_hidden_layers": 4, **(_TINY_DELTA if name == "27b" else {})}
        target = {**target, **shrunk}
        drafter = {
            **drafter,
            **_TINY,
            "dflash_config": {"mask_token_id": 319, "target_layer_ids": [0, 1, 3]},
            "dspine_config": {"transfer_rank": 32, "message_size": 16, "top_k": 16},
        }
    return PairConfig(name, parse_target_config(target), parse_drafter_config(drafter))


def build_pair(config: PairConfig, device: torch.device, *, seed: int = 0) -> Pair:
    """Random bf16 weights, made on `device` without a copy elsewhere; `A_log` is fp32 as when it is loaded."""
    random = torch.Generator(device).manual_seed(seed)
    with torch.device("meta"):
        target = make_target(config.target)
        projector = FeatureProjector(config.drafter)
    for module in (target, projector):
        fill(module, device, random)
        pack_weights(module)
    with torch.device("meta"):
        drafter = make_drafter(config.drafter, target.embedding_weight, target.lm_head_weight)
    assert isinstance(drafter, DSpine)
    fill(drafter, device, random)
    codes = torch.randn(drafter.transfer_codes.shape, dtype=torch.bfloat16, device=device, generator=random)
    drafter.set_transfer_codes(nn.functional.normalize(codes, dim=-1))
    if device.type == "cuda":
        torch.cuda.empty_cache()  # of what packing copied
    return Pair(config, target, projector, drafter)


@torch.no_grad()
def fill(module: nn.Module, device: torch.device, random: torch.Generator) -> None:
    """Random bf16 weights for a module made on `meta`: matrices normal, vectors too around what changes nothing."""
    module.to(torch.bfloat16).to_empty(device=device).eval().requires_grad_(False)
    for owner in module.modules():
        for name, parameter in owner.named_parameters(recurse=False):
            if name == "A_log":
                decay = torch.empty(parameter.shape, device=device).uniform_(0.01, 16.0, generator=random)
                owner.A_log = nn.Parameter(decay.log(), requires_grad=False)
            elif parameter.dim() > 1:
                parameter.normal_(std=min(0.02, parameter.shape[-1] ** -0.5), generator=random)
            else:
                is_offset = name == "bias" or isinstance(owner, ZeroCentredRMSNorm)
                parameter.normal_(0.0 if is_offset else 1.0, 0.1, generator=random)
