"""Drafts padded to a few sizes, so that a recorded one serves all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspine_cluster.engine.draft_pool import DraftPool
from dspine_cluster.engine.graphs import GraphCache
from dspine_cluster.models.drafter import DraftContext, Drafter

_MIN_PAGES = 128
"""Pages of the narrowest page table: 2048 tokens of context."""


@dataclass(frozen=True, slots=True)
class DraftPlace:
    """Where a block begins and what context it sees."""

    anchor: int
    position: int
    pages: Sequence[int]
    first_page: int
    start: int


class _Size(NamedTuple):
    num_blocks: int
    num_pages: int

    @property
    def parts(self) -> tuple[int, int]:
        """Integers for one number a block, of which there are four, and for the tables; rows stay 16-byte aligned."""
        return self.num_blocks + self.num_blocks % 2, self.num_blocks * self.num_pages

    @property
    def num_integers(self) -> int:
        return 4 * self.parts[0] + self.parts[1]


class DraftGraphs:
    """`Drafter.candidates` over buffers that stay in place. For one thread."""

    def __init__(self, drafter: Drafter, pool: DraftPool, *, max_blocks: int = 64) -> None:
        """Batches of more than `max_blocks` blocks are not padded."""
        self._drafter = drafter
        self._pool = pool
        self._max_blocks = max_blocks
        self._numbers: dict[_Size, Tensor] = {}
        self._graphs: GraphCache[_Size, tuple[Tensor, Tensor]] = GraphCache(pool.keys.device)

    @torch.inference_mode()
    def candidates(self, blocks: Sequence[DraftPlace]) -> tuple[Tensor, Tensor] | None:
        """As `Drafter.candidates`, good until the next call; None for more blocks than are padded."""
        if len(blocks) > self._max_blocks:
            return None
        size = self._size(blocks)
        numbers = self._numbers.get(size)
        if numbers is None:
            numbers = torch.zeros(size.num_integers, dtype=torch.int64, device=self._pool.keys.device)
            self._numbers[size] = numbers
        numbers.copy_(torch.from_numpy(_pack(blocks, size)))
        candidates, rows = self._graphs.run(size, lambda: self._run(numbers, size))
        return candidates[: len(blocks)], rows[: len(blocks)]

    def warm_up(self) -> None:
        """Record the sizes of short contexts, largest first. Nothing is drafted."""
        size = self._max_blocks
        while size:
            self.candidates([_NOWHERE] * size)
            size //= 2

    def _run(self, numbers: Tensor, size: _Size) -> tuple[Tensor, Tensor]:
        length = size.parts[0]
        one_each, tables = numbers[: 4 * length].view(4, length), numbers[4 * length :]
        anchors, positions, first_pages, starts = one_each[:, : size.num_blocks]
        context = DraftContext(
            key_pages=self._pool.keys,
            value_pages=self._pool.values,
            page_table=tables.view(size),
            first_pages=first_pages,
            starts=starts,
        )
        return self._drafter.candidates(anchors, positions, context)

    def _size(self, blocks: Sequence[DraftPlace]) -> _Size:
        num_pages = max(len(block.pages) for block in blocks)
        return _Size(
            min(self._max_blocks, _power_of_two(len(blocks))), max(_MIN_PAGES, _power_of_two(num_pages))
        )


_NOWHERE = DraftPlace(anchor=0, position=0, pages=(), first_page=0, start=0)
"""A block without context, which padding drafts too."""


def _pack(blocks: Sequence[DraftPlace], size: _Size) -> npt.NDArray[np.int64]:
    """Anchors, positions, first pages and starts, then the page tables; zeros for padding."""
    numbers = np.zeros(size.num_integers, np.int64)
    length = size.parts[0]
    one_each = numbers[: 4 * length].reshape(4, length)
    one_each[:, : len(blocks)] = np.array(
        [(block.anchor, block.position, block.first_page, block.start) for block in blocks]
    ).T
    tables = numbers[4 * length :].reshape(size)
    for row, block in zip(tables, blocks, strict=False):
        row[: len(block.pages)] = block.pages
    return numbers


def _power_of_two(at_least: int) -> int:
    return 1 << max(0, at_least - 1).bit_length()
