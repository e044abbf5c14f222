"""The target's weights that its drafter uses too, read without the rest of the target."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dspine_cluster.errors import CheckpointError
from dspine_cluster.models.folder import read_headers, weight_files
from dspine_cluster.models.weights import read_target_config

_EMBEDDING = (
    "model.embed_tokens.weight",
    "model.language_model.embed_tokens.weight",
    "language_model.model.embed_tokens.weight",
)
_HEAD = ("lm_head.weight", "language_model.lm_head.weight")
"""Names in text and in multimodal checkpoints."""


def load_embedding_and_head(
    folder: Path, *, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Embedding and head of a target, each `[vocab_size, hidden_size]`; the same tensor where they are tied.

    Raises:
        CheckpointError: a file cannot be read, or one of the two is missing or misshapen.
        ConfigError: `config.json` is not a supported target's.
    """
    config = read_target_config(folder)
    shape = (config.vocab_size, config.hidden_size)
    embedding = _read(folder, _EMBEDDING, shape).to(device, dtype, copy=True)
    if config.tie_word_embeddings:
        return embedding, embedding
    return embedding, _read(folder, _HEAD, shape).to(device, dtype, copy=True)


def _read(folder: Path, names: tuple[str, ...], shape: tuple[int, int]) -> Tensor:
    for file in weight_files(folder):
        for name in read_headers(file).keys() & set(names):
            try:
                with safe_open(file, framework="pt") as opened:
                    tensor: Tensor = opened.get_tensor(name)
            except (OSError, SafetensorError) as error:
                raise CheckpointError(f"cannot read {file}: {error}") from error
            if tensor.shape != shape:
                raise CheckpointError(
                    f"{folder}: {name} is {list(tensor.shape)} instead of {list(shape)}; config.json differs from it"
                )
            return tensor
    raise CheckpointError(f"{folder}: missing tensor {names[0]}")
