"""Training state on disk, in one file that is replaced as a whole."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from dspine_cluster.errors import CheckpointError
from dspine_cluster.miniature.replacing import replacing

CHECKPOINT = "checkpoint.pt"


class Optimizer(Protocol):
    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Checkpoint:
    """The latest state of one training, `checkpoint.pt` in its folder."""

    def __init__(self, folder: Path, every_s: float) -> None:
        self.path = folder / CHECKPOINT
        self.every_s = every_s
        self._saved_at = time.monotonic()

    def restore(self, model: nn.Module, optimizer: Optimizer) -> int:
        """Load the saved state, if there is one; returns the number of finished steps.

        Raises:
            CheckpointError: the file is damaged, or of a model of another shape.
        """
        return _load(self.path, model, optimizer) if self.path.is_file() else 0

    def is_due(self) -> bool:
        """True `every_s` after the last save."""
        return time.monotonic() - self._saved_at >= self.every_s

    def save(self, model: nn.Module, optimizer: Optimizer, step: int) -> None:
        """Replace the file; `step` steps are finished.

        Raises:
            CheckpointError: it cannot be written; the earlier one stays.
        """
        content = io.BytesIO()  # on a full disk torch's own writer would not say what is wrong
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, content)
        with replacing(self.path) as path:
            path.write_bytes(content.getbuffer())
        self._saved_at = time.monotonic()


def load_trained(folder: Path, model: nn.Module) -> None:
    """Load only the model of a training in `folder`, finished or not.

    Raises:
        CheckpointError: there is none, the file is damaged, or of a model of another shape.
    """
    path = folder / CHECKPOINT
    if not path.is_file():
        raise CheckpointError(f"{path} is missing; run the stage that trains it first")
    _load(path, model, None)


def _load(path: Path, model: nn.Module, optimizer: Optimizer | None) -> int:
    try:
        state = torch.load(path, weights_only=True)
    except Exception as error:  # what torch raises depends on where the file is damaged
        raise CheckpointError(f"{path} is damaged; delete it to begin that training again") from error
    try:
        model.load_state_dict(state["model"])
        if optimizer is not None:
            optimizer.load_state_dict(state["optimizer"])
        return int(state["step"])
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is of another model; delete it or choose another folder") from error
