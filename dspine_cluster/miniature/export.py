"""Write the pair as Hugging Face folders."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from dspine_cluster.miniature.tokenizer import save_tokenizer
from dspine_cluster.models.config import write_target_config
from dspine_cluster.models.drafter import Drafter
from dspine_cluster.models.drafter_layers import FeatureProjector
from dspine_cluster.models.drafter_weights import save_drafter
from dspine_cluster.models.target import TargetModel
from dspine_cluster.models.weights import CONFIG_FILE, WEIGHTS_FILE

_KEPT_IN_FLOAT32 = ("A_log", "dt_bias")
"""Decay is exponential in these, and they are few."""


def export_target(model: TargetModel, tokenizer: Tokenizer, folder: Path) -> None:
    """Weights in bf16, configuration, tokenizer and chat template; transformers loads the folder as it is."""
    save_tokenizer(tokenizer, folder)
    mask_token_id = model.config.vocab_size - 1
    config = {**write_target_config(model.config), "dtype": "bfloat16"}
    generation = {
        "eos_token_id": list(model.config.eos_token_ids),
        "pad_token_id": model.config.eos_token_ids[-1],
        "suppress_tokens": [mask_token_id],
    }
    _write_json(config, folder / CONFIG_FILE)
    _write_json(generation, folder / "generation_config.json")
    tensors = {
        name: tensor.detach()
        .to(torch.float32 if name.endswith(_KEPT_IN_FLOAT32) else torch.bfloat16)
        .contiguous()
        for name, tensor in model.state_dict().items()
    }
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})


def export_drafter(drafter: Drafter, projector: FeatureProjector, folder: Path) -> None:
    """Weights and codes in bf16 in one file, and the configuration."""
    save_drafter(drafter, projector, folder, torch.bfloat16)


def _write_json(value: object, path: Path) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
