from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from dspine_cluster.errors import CheckpointError, ConfigError
from dspine_cluster.models.folder import (
    fingerprint,
    read_json,
    read_tensors,
    resolve_model,
    tokenizer_fingerprint,
    weight_files,
)

REVISION = "0123456789abcdef0123456789abcdef01234567"


def write_model(folder: Path, config: dict[str, Any] | None = None, shape: tuple[int, ...] = (2, 3)) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config or {"a": 1, "b": [2]}))
    save_file({"x": torch.ones(shape), "y": torch.zeros(4)}, folder / "model.safetensors")
    return folder


def write_index(folder: Path, weight_map: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_a_local_folder_needs_no_revision(tmp_path: Path) -> None:
    assert resolve_model(str(tmp_path), None) == tmp_path


@pytest.mark.parametrize("revision", [None, "main", "0123456", REVISION.upper()])
def test_a_hub_id_without_a_full_commit_hash_is_refused(revision: str | None) -> None:
    with pytest.raises(ConfigError, match="revision"):
        resolve_model("owner/model", revision)


@pytest.mark.parametrize("name", ["/no/such/folder", "model", "https://host/owner/model", "../owner/model"])
def test_what_is_neither_a_folder_nor_a_hub_id_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="neither"):
        resolve_model(name, REVISION)


def test_a_download_is_pinned_and_fetches_no_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[str, str, list[str]]] = []

    def download(name: str, *, revision: str, allow_patterns: list[str]) -> str:
        asked.append((name, revision, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert resolve_model("owner/model", REVISION) == tmp_path
    ((name, revision, patterns),) = asked
    assert (name, revision) == ("owner/model", REVISION)
    assert not any(Path(file).match(p) for p in patterns for file in ("modeling.py", "pytorch_model.bin"))
    assert all(
        any(Path(file).match(p) for p in patterns) for file in ("config.json", "a.safetensors", "c.jinja")
    )


def test_a_failed_download_names_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> str:
        raise OSError("no route")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(CheckpointError, match=r"owner/model.*no route"):
        resolve_model("owner/model", REVISION)


def test_tensors_of_all_shards_are_read(tmp_path: Path) -> None:
    for name in ("one", "two"):
        save_file({name: torch.full((2,), 3.0)}, tmp_path / f"{name}.safetensors")
    write_index(tmp_path, {"one": "one.safetensors", "two": "two.safetensors"})
    assert {name: tensor.tolist() for name, tensor in read_tensors(tmp_path)} == {
        "one": [3, 3],
        "two": [3, 3],
    }


@pytest.mark.parametrize(
    "name", ["../model.safetensors", "/etc/passwd", "a/b.safetensors", "model.bin", "..", 3]
)
def test_an_index_may_name_only_plain_safetensors_files(tmp_path: Path, name: Any) -> None:
    folder = write_model(tmp_path / "model")
    write_model(tmp_path)
    write_index(folder, {"x": name})
    with pytest.raises(CheckpointError, match="plain"):
        weight_files(folder)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_index(tmp_path, {"x": "lost.safetensors"})
    with pytest.raises(CheckpointError, match=r"lost\.safetensors"):
        weight_files(tmp_path)


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        weight_files(tmp_path)


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    file = write_model(tmp_path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        list(read_tensors(tmp_path))


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_what_is_no_json_object_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_json(tmp_path / "config.json")


def test_a_fingerprint_ignores_the_formatting_of_the_config(tmp_path: Path) -> None:
    first = write_model(tmp_path / "first")
    second = write_model(tmp_path / "second")
    (second / "config.json").write_text('{ "b": [2],\n "a": 1 }')
    assert fingerprint(first) == fingerprint(second)


def test_a_fingerprint_depends_on_config_shapes_and_files(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    seen = {fingerprint(folder)}
    seen.add(fingerprint(write_model(folder, shape=(3, 2))))
    seen.add(fingerprint(write_model(folder, config={"a": 2})))
    save_file({"codes": torch.ones(1)}, folder / "transfer.safetensors")
    seen.add(fingerprint(folder))
    assert len(seen) == 4


def test_a_tokenizer_fingerprint_depends_on_vocabulary_and_chat_template(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": 1}')
    seen = {tokenizer_fingerprint(tmp_path)}
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    seen.add(tokenizer_fingerprint(tmp_path))
    (tmp_path / "tokenizer.json").write_text('{"model": 2}')
    seen.add(tokenizer_fingerprint(tmp_path))
    assert len(seen) == 3


def test_a_chat_template_counts_alike_in_either_file(tmp_path: Path) -> None:
    inside, beside = tmp_path / "inside", tmp_path / "beside"
    for folder in (inside, beside):
        folder.mkdir()
        (folder / "tokenizer.json").write_text("{}")
    (inside / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    (beside / "chat_template.jinja").write_text("{{ messages }}")
    assert tokenizer_fingerprint(inside) == tokenizer_fingerprint(beside)
