"""One pass's packed tokens, and the pools as the model's layers see them during it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import add
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspine_cluster.core.page_pool import num_pages_for
from dspine_cluster.engine.page_table import IntArray, PageTable
from dspine_cluster.engine.pools import KvPool, StatePool
from dspine_cluster.types import PAGE_TOKENS
from dspine_kernels import gated_delta, kv_write, paged_attention
from dspine_kernels.gated_delta import Inputs, Weights
from dspine_kernels.kv_write import HeadTransform

MIN_ROWS = 4
"""Matrix products of fewer rows may differ from larger ones in the last bits, so packed rows are padded to this."""


class Segment(NamedTuple):
    """Consecutive tokens of one request in a pass."""

    tokens: Sequence[int]
    start: int
    """Position of the first token; all earlier positions are cached."""
    pages: Sequence[int]
    """Pages of the request; they cover the segment's last position."""
    state_slot: int


class PackedRows:
    """The segments of a pass one after the other, in columns: blocks first, then prefill chunks."""

    def __init__(
        self,
        tokens: Sequence[int],
        lengths: Sequence[int],
        starts: Sequence[int],
        state_slots: Sequence[int],
        page_table: PageTable,
        *,
        num_blocks: int,
    ) -> None:
        """`tokens` are those of all segments, `lengths`, `starts` and `state_slots` have a number for each; see
        `Segment`. The rows of `page_table` are up to date."""
        self.tokens = tokens
        self.lengths, self.starts, self.state_slots = lengths, starts, state_slots
        self.num_blocks = num_blocks
        self.columns = np.array((lengths, starts, state_slots), np.int64)
        """int64 [3, num_segments]: `lengths`, `starts` and `state_slots`."""
        self.num_rows = len(tokens)
        self.num_pages = num_pages_for(max(map(add, starts, lengths)))
        """That the longest of the requests needs."""
        self._page_table = page_table
        assert self.num_pages <= page_table.rows.shape[1], "a request has more positions than pages"

    @classmethod
    def of(cls, blocks: Sequence[Segment] = (), chunks: Sequence[Segment] = ()) -> PackedRows:
        """Of segments one by one, with a page table of their own."""
        tokens, starts, pages, state_slots = zip(*blocks, *chunks, strict=True)
        page_table = PageTable(max(state_slots) + 1)
        for slot, own in zip(state_slots, pages, strict=True):
            page_table.write(slot, own)
        return cls(
            list(chain.from_iterable(tokens)),
            list(map(len, tokens)),
            list(starts),
            list(state_slots),
            page_table,
            num_blocks=len(blocks),
        )

    @property
    def page_table(self) -> npt.NDArray[np.int32]:
        """int32 [num_segments, num_pages]; what lies beyond a request's last position may be any page."""
        return self._page_table.rows[self.columns[2], : self.num_pages]

    def places(self) -> tuple[IntArray, IntArray]:
        """The position of each row, and where it is stored, page * 16 + offset: `[num_rows]` each."""
        columns = self.columns
        return self._page_table.places(columns[2], columns[1], columns[0])


class SegmentGroup:
    """Segments that run through the same form of the recurrent layers: blocks (replay) or prefill chunks."""

    def __init__(
        self, packed: PackedRows, own: slice, device: torch.device, num_pending: Sequence[int] | None = None
    ) -> None:
        """`own` are neighbours among the packed segments."""
        lengths = packed.lengths[own]
        first_row = sum(packed.lengths[: own.start])
        self.rows = slice(first_row, first_row + sum(lengths))
        self.recurrence = gated_delta.plan(
            packed.state_slots[own], lengths, num_pending, first_row=first_row, device=device
        )
        self.attention = paged_attention.plan(
            packed.page_table[own], lengths, packed.starts[own], page_tokens=PAGE_TOKENS, device=device
        )


class PackedBatch:
    """The `Cache` of one pass: blocks first, then prefill chunks, then padding rows that touch nothing."""

    def __init__(self, packed: PackedRows, kv_pool: KvPool, state_pool: StatePool) -> None:
        device = kv_pool.keys.device
        num_blocks, num_segments = packed.num_blocks, len(packed.lengths)
        self._kv_pool, self._state_pool = kv_pool, state_pool
        self._blocks = self._chunks = None
        if num_blocks:
            num_pending = state_pool.num_pending[packed.columns[2, :num_blocks]]
            self._blocks = SegmentGroup(packed, slice(0, num_blocks), device, num_pending.tolist())
        if num_segments > num_blocks:
            self._chunks = SegmentGroup(packed, slice(num_blocks, num_segments), device)
        self.num_tokens = packed.num_rows
        self._num_padding = max(0, MIN_ROWS - self.num_tokens)
        host = np.zeros((3, self.num_tokens + self._num_padding), np.int64)
        host[0, : self.num_tokens] = packed.tokens
        host[1, : self.num_tokens], host[2, : self.num_tokens] = packed.places()
        rows = torch.from_numpy(host).to(device)
        self.tokens, self.positions, slots_of_rows = rows.unbind()  # each [num_rows]
        self.slots = slots_of_rows[: self.num_tokens]  # page * 16 + offset

    @property
    def feature_rows(self) -> Tensor:
        """Where in the feature pool the first `num_tokens` rows go."""
        return self.slots

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, heads: HeadTransform) -> Tensor:
        keys, values = self._kv_pool.keys[layer], self._kv_pool.values[layer]
        query = kv_write.write(query, key, value, heads, keys, values, self.slots)
        scale = query.shape[-1] ** -0.5
        parts = [
            paged_attention.attend(query[group.rows], keys, values, group.attention, scale)
            for group in (self._blocks, self._chunks)
            if group is not None
        ]
        return self._join(parts)  # [num_rows, num_heads, head_dim]

    def gated_delta(self, layer: int, inputs: Inputs, weights: Weights) -> Tensor:
        states = self._state_pool.layers[layer]
        parts = []
        if self._blocks is not None:
            parts.append(gated_delta.verify_slots(inputs, weights, states, self._blocks.recurrence))
        if self._chunks is not None:
            parts.append(gated_delta.prefill_slots(inputs, weights, states, self._chunks.recurrence))
        return self._join(parts)  # [num_rows, num_value_heads, value_head_dim]

    def _join(self, parts: list[Tensor]) -> Tensor:
        """The groups' rows one after the other, and the padding."""
        if self._num_padding:
            parts.append(parts[0].new_zeros((self._num_padding, *parts[0].shape[1:])))
        return parts[0] if len(parts) == 1 else torch.cat(parts)
