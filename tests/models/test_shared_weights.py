"""Embedding and head are found in every layout, and nothing else is taken for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from dspine_cluster import miniature
from dspine_cluster.errors import CheckpointError
from dspine_cluster.models.shared_weights import load_embedding_and_head
from dspine_cluster.models.weights import load_target

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the miniature target in which a test may change things."""
    source = miniature.folder("target")
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    save_file(load_file(source / "model.safetensors"), tmp_path / "model.safetensors")
    return tmp_path


def rename(folder: Path, names: dict[str, str]) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {names.get(name, name): tensor for name, tensor in tensors.items()}, folder / "model.safetensors"
    )


def test_they_are_the_target_s() -> None:
    target = load_target(miniature.folder("target"), dtype=torch.float32, device=CPU)
    state = target.state_dict()
    embedding, head = load_embedding_and_head(miniature.folder("target"), dtype=torch.float32, device=CPU)
    assert torch.equal(embedding, state["model.embed_tokens.weight"])
    assert torch.equal(head, state["lm_head.weight"])


def test_names_of_multimodal_checkpoints_are_known(folder: Path) -> None:
    expected = load_embedding_and_head(folder, dtype=torch.bfloat16, device=CPU)
    rename(folder, {"model.embed_tokens.weight": "model.language_model.embed_tokens.weight"})
    found = load_embedding_and_head(folder, dtype=torch.bfloat16, device=CPU)
    assert all(map(torch.equal, found, expected))


def test_tied_weights_are_one_tensor(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    embedding, head = load_embedding_and_head(folder, dtype=torch.float32, device=CPU)
    assert head is embedding


def test_a_missing_head_is_named(folder: Path) -> None:
    rename(folder, {"lm_head.weight": "other.weight"})
    with pytest.raises(CheckpointError, match="missing tensor lm_head"):
        load_embedding_and_head(folder, dtype=torch.float32, device=CPU)


def test_a_misshapen_embedding_is_named(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    name = "model.embed_tokens.weight"
    save_file({**tensors, name: tensors[name][1:].clone()}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"{name} is"):
        load_embedding_and_head(folder, dtype=torch.float32, device=CPU)
