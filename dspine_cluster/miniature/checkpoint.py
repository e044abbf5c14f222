"""Training state on disk: written beside and renamed, so that an interruption never leaves half a file."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from dspine_cluster.errors import CheckpointError


class Optimizer(Protocol):
    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Checkpoint:
    """The latest state of one training in one file."""

    def __init__(self, path: Path, every_s: float) -> None:
        self.path = path
        self.every_s = every_s
        self._saved_at = time.monotonic()

    def restore(self, model: nn.Module, optimizer: Optimizer) -> int:
        """Load the saved state, if there is one; returns the number of finished steps."""
        if not self.path.is_file():
            return 0
        state = torch.load(self.path, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        return int(state["step"])

    def is_due(self) -> bool:
        """True `every_s` after the last save."""
        return time.monotonic() - self._saved_at >= self.every_s

    def save(self, model: nn.Module, optimizer: Optimizer, step: int) -> None:
        """Replace the file; `step` steps are finished."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(".partial")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, beside)
        os.replace(beside, self.path)
        self._saved_at = time.monotonic()


def load_model_state(path: Path, model: nn.Module) -> None:
    """Load only the model of a saved training.

    Raises:
        CheckpointError: there is no such file.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} is missing; run the stage that trains it first")
    model.load_state_dict(torch.load(path, weights_only=True)["model"])
