"""The tensors that outlive a pass: K/V and features by page, recurrent states by slot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspine_cluster.engine.feature_record import FeatureRecord
from dspine_cluster.models.config import TargetConfig
from dspine_cluster.types import MAX_PROPOSALS, PAGE_TOKENS
from dspine_kernels import gated_delta


@dataclass(frozen=True)
class KvPool:
    """K/V of the full-attention layers, by page."""

    keys: Tensor
    """[num_layers, num_pages, 16, num_kv_heads, head_dim], model dtype; unused slots hold anything, NaN included."""
    values: Tensor
    """Like `keys`."""

    @classmethod
    def create(cls, config: TargetConfig, num_pages: int, dtype: torch.dtype, device: torch.device) -> KvPool:
        shape = (config.num_attention_layers, num_pages, PAGE_TOKENS, config.num_kv_heads, config.head_dim)
        return cls(
            torch.empty(shape, dtype=dtype, device=device), torch.empty(shape, dtype=dtype, device=device)
        )

    @staticmethod
    def page_bytes(config: TargetConfig, dtype: torch.dtype) -> int:
        """Bytes of one page over all layers."""
        token = config.num_attention_layers * config.num_kv_heads * config.head_dim * dtype.itemsize
        return 2 * PAGE_TOKENS * token


@dataclass(frozen=True)
class FeaturePool:
    """Features of computed tokens, by page; a page holds them beside its K/V."""

    storage: Tensor
    """`rows`, and one row more, which takes what belongs to no token."""
    record: FeatureRecord
    """Which rows are there."""

    @cached_property
    def rows(self) -> Tensor:
        """[num_pages * 16, feature_size], model dtype; row = page * 16 + offset."""
        return self.storage[:-1]

    def read(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """The bytes of some rows, `[num_rows, row_bytes]`."""
        raw = self._row_bytes
        return fetch_rows(self.rows, slots) if raw is None else raw.take(slots, 0)

    @cached_property
    def _row_bytes(self) -> npt.NDArray[np.uint8] | None:
        """`rows` without a copy, where they are on the CPU."""
        if self.storage.device.type != "cpu":
            return None
        raw: npt.NDArray[np.uint8] = self.rows.view(torch.uint8).numpy()
        return raw

    @property
    def _pages(self) -> Tensor:
        """`rows` as `[num_pages, 16, feature_size]`."""
        return self.rows.view(len(self.rows) // PAGE_TOKENS, PAGE_TOKENS, self.rows.shape[1])

    @classmethod
    def create(
        cls, feature_size: int, num_pages: int, dtype: torch.dtype, device: torch.device
    ) -> FeaturePool:
        storage = torch.empty((num_pages * PAGE_TOKENS + 1, feature_size), dtype=dtype, device=device)
        return cls(storage, FeatureRecord(num_pages))

    def copy_page(self, source: int, target: int) -> None:
        """Copy the features of a page, as far as they exist."""
        self._pages[target] = self._pages[source]
        self.record.copy_page(source, target)

    def complete_page(self, source: int, target: int) -> None:
        """Copy those features of a page that another of the same tokens lacks."""
        offsets = self.record.complete_page(source, target)
        if offsets:
            self._pages[target, offsets] = self._pages[source, offsets]

    @staticmethod
    def page_bytes(feature_size: int, dtype: torch.dtype) -> int:
        return PAGE_TOKENS * feature_size * dtype.itemsize


def fetch_rows(rows: Tensor, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """The bytes of some rows of a matrix on any device, `[num_rows, row_bytes]`."""
    chosen = rows.index_select(0, torch.from_numpy(slots).to(rows.device))
    raw: npt.NDArray[np.uint8] = chosen.cpu().view(torch.uint8).numpy()
    return raw


class StatePool:
    """Recurrent states of Gated DeltaNet layers, one slot a running request, with ReplaySSM semantics.

    A pass over a block moves the state to its anchor, which is committed, and keeps the raw inputs of the proposals
    as pending. After acceptance `set_pending` says how many of them were accepted; the next pass replays exactly these
    before its own tokens. So no pass ever has to undo a state, and no state is stored per token.
    """

    def __init__(
        self, config: TargetConfig, num_slots: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        num_layers = config.num_gated_delta_layers
        self._free = list(reversed(range(num_slots)))
        self.num_slots = num_slots
        self.num_pending = np.zeros(num_slots, np.int32)
        """Accepted proposals of each slot that its state has not seen yet."""
        self.layers: list[gated_delta.States] = []
        """What the recurrence of each layer works on: views of the tensors below."""
        delta = config.gated_delta
        if delta is None:
            assert num_layers == 0
            return
        conv_dim, num_heads = delta.conv_dim, delta.num_value_heads

        def zeros(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.zeros((num_layers, num_slots, *shape), dtype=dtype, device=device)

        self.state = zeros(num_heads, delta.key_head_dim, delta.value_head_dim, dtype=torch.float32)
        self.conv_state = zeros(delta.conv_kernel - 1, conv_dim)
        self.pending_qkv = zeros(MAX_PROPOSALS, conv_dim)
        self.pending_a = zeros(MAX_PROPOSALS, num_heads)
        self.pending_b = zeros(MAX_PROPOSALS, num_heads)
        for layer in range(num_layers):
            pending = (x[layer] for x in (self.pending_qkv, self.pending_a, self.pending_b))
            states = gated_delta.States(
                self.state[layer], self.conv_state[layer], gated_delta.Inputs(*pending)
            )
            self.layers.append(states)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self) -> int:
        """Take a slot whose state is that of an empty past."""
        slot = self._free.pop()
        self.clear(slot)
        return slot

    def clear(self, slot: int) -> None:
        """Make its state that of an empty past."""
        self.num_pending[slot] = 0
        for tensor in self.live_tensors:
            tensor[:, slot] = 0

    def release(self, slot: int) -> None:
        assert slot not in self._free
        self._free.append(slot)

    def set_pending(
        self, slots: int | Sequence[int] | npt.NDArray[np.int64], num_accepted: int | Sequence[int]
    ) -> None:
        """Say how many proposals of the last pass's blocks were accepted."""
        self.num_pending[slots] = num_accepted

    @property
    def live_tensors(self) -> list[Tensor]:
        """What a request's recurrent past is made of, beside its pending inputs: `[num_layers, num_slots, ...]`."""
        return [self.state, self.conv_state] if hasattr(self, "state") else []

    @staticmethod
    def slot_bytes(config: TargetConfig, dtype: torch.dtype) -> tuple[int, int]:
        """Bytes of one slot's live state and of its pending inputs, over all layers."""
        delta = config.gated_delta
        if delta is None:
            return 0, 0
        state = delta.num_value_heads * delta.key_head_dim * delta.value_head_dim * 4
        conv = (delta.conv_kernel - 1) * delta.conv_dim * dtype.itemsize
        pending = MAX_PROPOSALS * (delta.conv_dim + 2 * delta.num_value_heads) * dtype.itemsize
        return config.num_gated_delta_layers * (state + conv), config.num_gated_delta_layers * pending
