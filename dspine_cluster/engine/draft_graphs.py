"""Drafts padded to a few sizes, so that a recorded one serves all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dspine_cluster.core.graph_buckets import table_pages
from dspine_cluster.engine.draft_pool import DraftPool
from dspine_cluster.engine.graphs import GraphCache
from dspine_cluster.engine.inference import in_inference_mode
from dspine_cluster.engine.staging import Staging
from dspine_cluster.models.drafter import DraftContext, Drafter


@dataclass(frozen=True, slots=True)
class DraftPlace:
    """Where a block begins and what context it sees."""

    anchor: int
    position: int
    pages: Sequence[int]
    first_page: int
    start: int


_NOWHERE = DraftPlace(anchor=0, position=0, pages=(), first_page=0, start=0)
"""A block without context, which padding drafts too."""


class _Size(NamedTuple):
    num_blocks: int
    num_pages: int


class DraftGraphs:
    """`Drafter.candidates` over buffers that stay in place. For one thread."""

    def __init__(self, drafter: Drafter, pool: DraftPool, *, max_blocks: int = 64) -> None:
        """Batches of more than `max_blocks` blocks are not padded."""
        self._drafter = drafter
        self._pool = pool
        self._max_blocks = max_blocks
        self._inputs: dict[_Size, Staging] = {}
        self._graphs: GraphCache[_Size, tuple[Tensor, Tensor]] = GraphCache(pool.keys.device)

    @in_inference_mode
    def candidates(self, blocks: Sequence[DraftPlace]) -> tuple[Tensor, Tensor] | None:
        """As `Drafter.candidates`, good until the next call; None for more blocks than are padded.

        The caller must have waited for the device since the call before.
        """
        if len(blocks) > self._max_blocks:
            return None
        size = self._size(blocks)
        if size not in self._inputs:
            self._inputs[size] = Staging(_fields(size), self._pool.keys.device)
        inputs = self._inputs[size]
        _fill(inputs, [*blocks, *[_NOWHERE] * (size.num_blocks - len(blocks))])
        inputs.send()
        candidates, rows = self._graphs.run(size, lambda: self._run(inputs.device))
        return candidates[: len(blocks)], rows[: len(blocks)]

    def is_recorded(self, blocks: Sequence[DraftPlace]) -> bool:
        return self._graphs.is_recorded(self._size(blocks))

    def warm_up(self) -> None:
        """Record the sizes of short contexts, largest first. Nothing is drafted."""
        size = self._max_blocks
        while size:
            self.candidates([_NOWHERE] * size)
            size //= 2

    def _run(self, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        context = DraftContext(
            key_pages=self._pool.keys,
            value_pages=self._pool.values,
            page_table=inputs["table"],
            first_pages=inputs["first_pages"],
            starts=inputs["starts"],
        )
        return self._drafter.candidates(inputs["anchors"], inputs["positions"], context)

    def _size(self, blocks: Sequence[DraftPlace]) -> _Size:
        num_blocks = 1 << (len(blocks) - 1).bit_length()
        num_pages = table_pages(max(len(block.pages) for block in blocks))
        return _Size(min(self._max_blocks, num_blocks), num_pages)


def _fields(size: _Size) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    one_each = dict.fromkeys(
        ("anchors", "positions", "first_pages", "starts"), (torch.int64, (size.num_blocks,))
    )
    return {**one_each, "table": (torch.int32, size)}


def _fill(inputs: Staging, blocks: Sequence[DraftPlace]) -> None:
    host = inputs.host
    host["anchors"][:] = [block.anchor for block in blocks]
    host["positions"][:] = [block.position for block in blocks]
    host["first_pages"][:] = [block.first_page for block in blocks]
    host["starts"][:] = [block.start for block in blocks]
    for row, block in zip(host["table"], blocks, strict=True):
        row[: len(block.pages)] = block.pages
