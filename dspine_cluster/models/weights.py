"""Targets from model folders and back: load with every tensor accounted for, save."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from dspine_cluster.errors import CheckpointError
from dspine_cluster.models.architecture import make_target
from dspine_cluster.models.config import (
    TargetConfig,
    parse_eos_token_ids,
    parse_target_config,
    write_target_config,
)
from dspine_cluster.models.folder import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    read_headers,
    read_json,
    read_tensors,
    weight_files,
)
from dspine_cluster.models.packing import pack_weights
from dspine_cluster.models.sharding import WHOLE, Reduce, Shard, shard_config, shard_tensor, sum_over_ranks
from dspine_cluster.models.target import TargetModel

SKIPPED_PREFIXES = ("visual.", "model.visual.", "mtp.", "model.mtp.")
NAMES_SHOWN = 8
"""Tensors that an error message names before it counts the rest."""


def read_target_config(folder: Path) -> TargetConfig:
    """The folder's `config.json`, with the end tokens of its `generation_config.json` added.

    Raises:
        CheckpointError: a file cannot be read.
        ConfigError: as `parse_target_config`.
    """
    config = parse_target_config(read_json(folder / CONFIG_FILE))
    generation = folder / "generation_config.json"
    if not generation.is_file():
        return config
    ids = (*config.eos_token_ids, *parse_eos_token_ids(read_json(generation)))
    return replace(config, eos_token_ids=tuple(dict.fromkeys(ids)))


def load_target(
    folder: Path,
    *,
    dtype: torch.dtype,
    device: torch.device,
    shard: Shard = WHOLE,
    reduce: Reduce | None = None,
) -> TargetModel:
    """Load a Hugging Face folder for inference; vision and multi-token-prediction tensors are left out.

    Every tensor is cast to `dtype`, except `A_log`, which is kept in fp32. Of a `shard` only that rank's part is read,
    and `reduce` joins what the ranks compute.

    Raises:
        CheckpointError: a file cannot be read, or tensors are missing, surplus or misshapen; the message names them.
        ConfigError: as `parse_target_config` and `shard_config`.
    """
    config = read_target_config(folder)
    if problems := target_problems(folder, config):
        raise CheckpointError(f"{folder}: {'; '.join(problems)}")
    with torch.device("meta"):
        model = make_target(shard_config(config, shard.num_ranks))
    if reduce is not None:
        sum_over_ranks(model, reduce)
    loaded = {
        name: shard_tensor(name, tensor, config, shard).to(device, _stored_dtype(name, dtype), copy=True)
        for stored_name, tensor in read_tensors(folder)
        if (name := _text_name(stored_name, config)) is not None
    }
    model.load_state_dict(loaded, assign=True)
    pack_weights(model)
    return model.eval().requires_grad_(False)


def target_problems(folder: Path, config: TargetConfig) -> list[str]:
    """What keeps the folder's tensors from being a target of `config`: misshapen, missing and surplus ones, by name.
    Their contents are not read.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    with torch.device("meta"):
        expected = {name: tuple(tensor.shape) for name, tensor in make_target(config).state_dict().items()}
    found: set[str] = set()
    surplus, misshapen = [], []
    for file in weight_files(folder):
        for stored_name, (_, shape) in read_headers(file).items():
            name = _text_name(stored_name, config)
            if name is None:
                continue
            found.add(name)
            if name not in expected:
                surplus.append(stored_name)
            elif shape != expected[name]:
                misshapen.append(f"{stored_name} {list(shape)} instead of {list(expected[name])}")
    problems = []
    if misshapen:
        problems.append(f"misshapen tensors: {_enumerate(misshapen)}; config.json differs from them")
    if missing := sorted(expected.keys() - found):
        problems.append(f"missing tensors: {_enumerate(missing)}")
    if surplus:
        problems.append(f"surplus tensors: {_enumerate(surplus)}; the architecture has no place for them")
    return problems


def save_target(model: TargetModel, folder: Path, *, dtype: torch.dtype) -> None:
    """Write `config.json` and `model.safetensors` in Hugging Face's layout, cast to `dtype` except `A_log` (fp32)."""
    folder.mkdir(parents=True, exist_ok=True)
    content = json.dumps(write_target_config(model.config), indent=2) + "\n"
    (folder / CONFIG_FILE).write_text(content, encoding="utf-8")
    tensors = {
        name: tensor.to(_stored_dtype(name, dtype)).contiguous()
        for name, tensor in model.state_dict().items()
    }
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})


def _stored_dtype(name: str, dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if name.endswith(".A_log") else dtype


def _text_name(stored_name: str, config: TargetConfig) -> str | None:
    """The name of a text tensor without the prefixes that multimodal checkpoints put before it; None to skip it."""
    if stored_name.startswith(SKIPPED_PREFIXES):
        return None
    name = stored_name.removeprefix("language_model.")
    if name.startswith("model.language_model."):
        name = "model." + name.removeprefix("model.language_model.")
    return None if config.tie_word_embeddings and name == "lm_head.weight" else name


def _enumerate(names: list[str]) -> str:
    rest = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
