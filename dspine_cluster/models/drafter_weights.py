"""Read and write drafter folders, in both published layouts."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from dspine_cluster.errors import CheckpointError
from dspine_cluster.models.drafter import Drafter
from dspine_cluster.models.drafter_config import DrafterConfig, parse_drafter_config, write_drafter_config
from dspine_cluster.models.drafter_init import make_drafter
from dspine_cluster.models.drafter_layers import FeatureProjector
from dspine_cluster.models.dspine import DSpine
from dspine_cluster.models.folder import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    read_file_tensors,
    read_headers,
    read_json,
    read_tensors,
    weight_files,
)

CODES_FILE = "transfer.safetensors"
CODES_KEY = "codes"
_CODES = "transfer_codes"
_READY = "transfer_ready"


def read_drafter_config(folder: Path) -> DrafterConfig:
    """The folder's `config.json`.

    Raises:
        CheckpointError: it cannot be read.
        ConfigError: it is not a supported drafter's.
    """
    return parse_drafter_config(read_json(folder / CONFIG_FILE))


def load_drafter(
    folder: Path, *, embedding: Tensor, lm_head: Tensor, dtype: torch.dtype, device: torch.device
) -> Drafter:
    """The drafter of `folder`, for inference.

    The codes lie with the other weights or beside them in `transfer.safetensors`.

    Args:
        folder: a checkpoint.
        embedding: the target's, `[vocab_size, hidden_size]`, on `device`; shared, not copied.
        lm_head: the target's, alike.
        dtype: of weights and codes.
        device: where the drafter runs.

    Raises:
        CheckpointError: tensors are missing, surplus or misshapen (all are named), or the codes were never set.
        ConfigError: `config.json` is not a supported drafter's.
        MismatchError: the drafter was made for a target of another size.
    """
    config = read_drafter_config(folder)
    with torch.device("meta"):
        drafter = make_drafter(config, embedding, lm_head)
    tensors = _read(folder, config, set(drafter.state_dict()))
    wanted = {name: tensor.to(device, dtype, copy=True) for name, tensor in tensors.items()}
    if isinstance(drafter, DSpine):
        wanted[_READY] = torch.tensor(True, device=device)
    drafter.load_state_dict(wanted, assign=True)
    return drafter.requires_grad_(False).eval()


def load_feature_projector(folder: Path, dtype: torch.dtype, device: torch.device) -> FeatureProjector:
    """The part of `folder` that runs on the verifier, for inference.

    Raises:
        CheckpointError: as `load_drafter`.
        ConfigError: as `load_drafter`.
    """
    config = read_drafter_config(folder)
    with torch.device("meta"):
        projector = FeatureProjector(config)
    tensors = _read(folder, config, set(projector.state_dict()))
    wanted = {name: tensor.to(device, dtype, copy=True) for name, tensor in tensors.items()}
    projector.load_state_dict(wanted, assign=True)
    return projector.requires_grad_(False).eval()


def save_drafter(drafter: Drafter, projector: FeatureProjector, folder: Path, dtype: torch.dtype) -> None:
    """Write `config.json` and one `model.safetensors` with the codes; floats as `dtype`."""
    state = {**projector.state_dict(), **drafter.state_dict()}
    stored = {
        name: (tensor.to(dtype) if tensor.is_floating_point() else tensor).detach().contiguous()
        for name, tensor in state.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    config_json = json.dumps(write_drafter_config(drafter.config), indent=2)
    (folder / CONFIG_FILE).write_text(config_json + "\n", encoding="utf-8")
    save_file(stored, folder / WEIGHTS_FILE, metadata={"format": "pt"})


def expected_shapes(config: DrafterConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of a checkpoint with its shape; `transfer_ready` is optional and not among them."""
    with torch.device("meta"):
        target_weight = torch.empty(config.vocab_size, config.hidden_size)
        modules: list[nn.Module] = [
            FeatureProjector(config),
            make_drafter(config, target_weight, target_weight),
        ]
    states = [module.state_dict() for module in modules]
    return {name: tuple(t.shape) for state in states for name, t in state.items() if name != _READY}


def drafter_problems(folder: Path, config: DrafterConfig) -> list[str]:
    """What keeps the folder's tensors from being a drafter of `config`: missing, surplus and misshapen ones, by name.
    Their contents are not read.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    found = {name: shape for file in weight_files(folder) for name, (_, shape) in read_headers(file).items()}
    found.pop(_READY, None)
    if _has_codes_beside(folder, config):
        beside = {name: shape for name, (_, shape) in read_headers(folder / CODES_FILE).items()}
        if set(beside) != {CODES_KEY} or _CODES in found:
            raise CheckpointError(
                f"{folder / CODES_FILE} must hold {CODES_KEY!r} alone, and {_CODES} must not lie elsewhere too"
            )
        found[_CODES] = beside[CODES_KEY]
    expected = expected_shapes(config)
    problems = [f"missing {name} {shape}" for name, shape in expected.items() if name not in found]
    problems += [f"surplus {name} {shape}" for name, shape in found.items() if name not in expected]
    problems += [
        f"misshapen {name} {found[name]} instead of {shape}"
        for name, shape in expected.items()
        if name in found and found[name] != shape
    ]
    return problems


def _read(folder: Path, config: DrafterConfig, names: set[str]) -> dict[str, Tensor]:
    """The named tensors of the folder, all of which is checked against the config. `transfer_ready` is left out."""
    if problems := drafter_problems(folder, config):
        raise CheckpointError(f"{folder} does not fit its config.json: {'; '.join(problems)}")
    tensors = {name: tensor for name, tensor in read_tensors(folder) if name in names}
    is_ready = bool(tensors.pop(_READY, torch.tensor(True)))
    if _CODES in names and _has_codes_beside(folder, config):
        tensors[_CODES] = dict(read_file_tensors(folder / CODES_FILE))[CODES_KEY]
    elif not is_ready:
        raise CheckpointError(
            f"{folder}: {_READY} is false, the {_CODES} were never set; export it after training"
        )
    return tensors


def _has_codes_beside(folder: Path, config: DrafterConfig) -> bool:
    return config.kind == "dspine" and (folder / CODES_FILE).is_file()
