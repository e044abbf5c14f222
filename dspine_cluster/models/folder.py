"""Model folders: find or download them, read their tensors, fingerprint them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer
from torch import Tensor

from dspine_cluster.errors import CheckpointError, ConfigError

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
TOKENIZER_FILE = "tokenizer.json"
CHAT_TEMPLATE_FILE = "chat_template.jinja"
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "vocab.txt", "merges.txt"]


def resolve_model(name: str, revision: str | None) -> Path:
    """A local folder as it is, or a Hub id, downloaded at a pinned revision without any code.

    Raises:
        ConfigError: `name` is neither, or its revision is not a full commit hash.
        CheckpointError: the download failed.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise ConfigError(f"{name!r} is neither a folder nor a Hub id such as owner/model")
    if revision is None or not re.fullmatch(r"[0-9a-f]{40}", revision):
        raise ConfigError(
            f"{name!r} is no folder; to load it from the Hub set its revision to a 40-digit commit hash"
        )
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=HUB_FILES))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot download {name} at revision {revision}: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        CheckpointError: the file is missing or holds something else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} does not hold a JSON object")
    return value


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model: those its index names, sorted, or the one file.

    Raises:
        CheckpointError: there are none, one is missing, or the index names anything but a plain file name.
    """
    index = folder / INDEX_FILE
    if not index.is_file():
        if not (folder / WEIGHTS_FILE).is_file():
            raise CheckpointError(f"{folder} holds neither {WEIGHTS_FILE} nor {INDEX_FILE}")
        return [folder / WEIGHTS_FILE]
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} has no weight_map")
    names = list(weight_map.values())
    for name in names:
        if not isinstance(name, str) or not re.fullmatch(r"[\w-][\w.-]*\.safetensors", name):
            raise CheckpointError(f"{index}: {name!r} is not a plain .safetensors file name")
        if not (folder / name).is_file():
            raise CheckpointError(f"{index} names {name}, which is missing")
    return [folder / name for name in sorted(set(names))]


def read_tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of every tensor of a model, one at a time.

    Raises:
        CheckpointError: as `weight_files`, or a file is damaged.
    """
    for file in weight_files(folder):
        yield from read_file_tensors(file)


def read_file_tensors(file: Path) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of every tensor of one safetensors file, one at a time.

    The tensors lie in the mapped file: copy what is kept, or who replaces the file changes it.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    try:
        with safe_open(file, framework="pt") as opened:
            names: list[str] = list(opened.keys())
            for name in names:
                yield name, opened.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot read {file}: {error}") from error


def read_headers(file: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """(dtype, shape) of every tensor of one safetensors file, without reading its contents.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    try:
        with safe_open(file, framework="pt") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
            return {name: (str(s.get_dtype()), tuple(s.get_shape())) for name, s in slices.items()}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot read {file}: {error}") from error


def fingerprint(folder: Path) -> str:
    """SHA-256 (hex) over `config.json` and name, dtype, shape of every tensor and the size of every weights file.

    The tensors' contents are not read. Formatting and key order of `config.json` do not matter.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{folder} holds no .safetensors file")
    index: list[Any] = []
    for file in files:
        tensors = sorted((name, dtype, list(shape)) for name, (dtype, shape) in read_headers(file).items())
        index.append([file.name, file.stat().st_size, tensors])
    content = json.dumps([read_json(folder / CONFIG_FILE), index], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def tokenizer_fingerprint(folder: Path) -> str:
    """SHA-256 (hex) over the tokenizer and the chat template, wherever the folder keeps that.

    Raises:
        CheckpointError: the tokenizer is missing or no JSON object.
    """
    template: Any = None
    if (folder / CHAT_TEMPLATE_FILE).is_file():
        template = (folder / CHAT_TEMPLATE_FILE).read_text(encoding="utf-8")
    elif (folder / "tokenizer_config.json").is_file():
        template = read_json(folder / "tokenizer_config.json").get("chat_template")
    content = json.dumps([read_json(folder / TOKENIZER_FILE), template], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a model folder.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    path = folder / TOKENIZER_FILE
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers has no type of its own
        raise CheckpointError(f"cannot read {path}: {error}") from error
