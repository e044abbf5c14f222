"""Numbers that the host writes and kernels read, of any integer types in one buffer, so that one copy moves them."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_ALIGNMENT = 16
"""Bytes that every field begins at a multiple of: kernels are compiled once for addresses that are aligned alike."""


class Staging:
    """Named fields of integers, zero at first. Their tensors never move, so recorded work may read them."""

    def __init__(
        self, fields: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], device: torch.device
    ) -> None:
        """`fields` gives the dtype and shape of each."""
        places: dict[str, slice] = {}
        num_bytes = 0
        for name, (dtype, shape) in fields.items():
            length = prod(shape) * dtype.itemsize
            places[name] = slice(num_bytes, num_bytes + length)
            num_bytes += length + -length % _ALIGNMENT
        self._sent = torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._received = torch.zeros(num_bytes, dtype=torch.uint8, device=device)

        def view(buffer: Tensor, name: str) -> Tensor:
            dtype, shape = fields[name]
            return buffer[places[name]].view(dtype).view(shape)

        self.host: dict[str, npt.NDArray[np.integer[Any]]] = {
            name: view(self._sent, name).numpy() for name in fields
        }
        """What the next `send` sends."""
        self.device = {name: view(self._received, name) for name in fields}

    def send(self) -> None:
        """Copy all fields. The host must have waited for the device since the last time, or that copy may still run."""
        self._received.copy_(self._sent, non_blocking=True)
