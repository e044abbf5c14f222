"""Write the pair as Hugging Face folders, weights in bf16."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer

from dspine_cluster.miniature.replacing import replacing
from dspine_cluster.miniature.tokenizer import save_tokenizer
from dspine_cluster.models.drafter import Drafter
from dspine_cluster.models.drafter_layers import FeatureProjector
from dspine_cluster.models.drafter_weights import save_drafter
from dspine_cluster.models.target import TargetModel
from dspine_cluster.models.weights import save_target


def export_target(model: TargetModel, tokenizer: Tokenizer, folder: Path) -> None:
    """Weights, configuration, tokenizer and chat template; transformers loads the folder as it is.

    Raises:
        CheckpointError: the folder cannot be written; an earlier one stays.
    """
    generation = {
        "eos_token_id": list(model.config.eos_token_ids),
        "pad_token_id": model.config.eos_token_ids[-1],
        "suppress_tokens": [model.config.vocab_size - 1],
    }
    with replacing(folder) as beside:
        save_tokenizer(tokenizer, beside)
        save_target(model, beside, dtype=torch.bfloat16)
        content = json.dumps(generation, indent=2) + "\n"
        (beside / "generation_config.json").write_text(content, encoding="utf-8")


def export_drafter(drafter: Drafter, projector: FeatureProjector, folder: Path) -> None:
    """Weights and codes in one file, and the configuration.

    Raises:
        CheckpointError: as `export_target`.
    """
    with replacing(folder) as beside:
        save_drafter(drafter, projector, beside, torch.bfloat16)
