"""The drafter's context K/V, by page."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from dspine_cluster.models.drafter_config import DrafterConfig
from dspine_cluster.types import PAGE_TOKENS


@dataclass(frozen=True)
class DraftPool:
    """Context keys and values of every drafter layer; which page is whose is `DraftContextTable`'s to know."""

    keys: Tensor
    """[num_layers, num_pages, 16, num_kv_heads, head_dim], drafter dtype; unused slots hold anything."""
    values: Tensor
    """Like `keys`."""

    @classmethod
    def create(
        cls, config: DrafterConfig, num_pages: int, dtype: torch.dtype, device: torch.device
    ) -> DraftPool:
        shape = (config.num_layers, num_pages, PAGE_TOKENS, config.num_kv_heads, config.head_dim)
        return cls(
            torch.empty(shape, dtype=dtype, device=device), torch.empty(shape, dtype=dtype, device=device)
        )

    @staticmethod
    def page_bytes(config: DrafterConfig, dtype: torch.dtype) -> int:
        """Bytes of one page over all layers."""
        token = config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize
        return 2 * PAGE_TOKENS * token

    @property
    def num_pages(self) -> int:
        return self.keys.shape[1]

    @cached_property
    def _rows(self) -> tuple[Tensor, Tensor]:
        """Keys and values as `[num_layers, num_pages * 16, num_kv_heads, head_dim]`."""
        return self.keys.flatten(1, 2), self.values.flatten(1, 2)

    def write(self, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store rows.

        Args:
            slots: int64 `[n]`, page * 16 + offset, each at most once.
            keys: `[num_layers, n, num_kv_heads, head_dim]`; `values` alike.
            values: see `keys`.
        """
        own_keys, own_values = self._rows
        own_keys.index_copy_(1, slots, keys)
        own_values.index_copy_(1, slots, values)
