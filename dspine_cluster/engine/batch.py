"""One pass's packed tokens, and the pools as the model's layers see them during it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspine_cluster.core.page_pool import extend_slots
from dspine_cluster.engine.pools import KvPool, StatePool
from dspine_cluster.types import PAGE_TOKENS
from dspine_kernels import gated_delta, kv_write, paged_attention
from dspine_kernels.gated_delta import Inputs, Weights
from dspine_kernels.kv_write import HeadTransform

MIN_ROWS = 4
"""Matrix products of fewer rows may differ from larger ones in the last bits, so packed rows are padded to this."""


@dataclass(slots=True)
class Segment:
    """Consecutive tokens of one request in a pass."""

    tokens: Sequence[int]
    start: int
    """Position of the first token; all earlier positions are cached."""
    pages: Sequence[int]
    """Pages of the request; they cover the segment's last position."""
    state_slot: int

    @property
    def positions(self) -> range:
        return range(self.start, self.start + len(self.tokens))


class SegmentGroup:
    """Segments that run through the same form of the recurrent layers: blocks (replay) or prefill chunks."""

    def __init__(
        self,
        segments: Sequence[Segment],
        first_row: int,
        device: torch.device,
        num_pending: Sequence[int] | None = None,
    ) -> None:
        lengths = [len(segment.tokens) for segment in segments]
        self.rows = slice(first_row, first_row + sum(lengths))
        self.recurrence = gated_delta.plan(
            [segment.state_slot for segment in segments],
            lengths,
            num_pending,
            first_row=first_row,
            device=device,
        )
        self.attention = paged_attention.plan(
            [segment.pages for segment in segments],
            lengths,
            [segment.start for segment in segments],
            page_tokens=PAGE_TOKENS,
            device=device,
        )


class PackedBatch:
    """The `Cache` of one pass: blocks first, then prefill chunks, then padding rows that touch nothing."""

    def __init__(
        self, blocks: Sequence[Segment], chunks: Sequence[Segment], kv_pool: KvPool, state_pool: StatePool
    ) -> None:
        device = kv_pool.keys.device
        segments = [*blocks, *chunks]
        self._kv_pool, self._state_pool = kv_pool, state_pool
        num_block_rows = sum(len(block.tokens) for block in blocks)
        num_pending = [state_pool.num_pending[block.state_slot] for block in blocks]
        self._blocks = SegmentGroup(blocks, 0, device, num_pending) if blocks else None
        self._chunks = SegmentGroup(chunks, num_block_rows, device) if chunks else None
        self.num_tokens = num_block_rows + sum(len(chunk.tokens) for chunk in chunks)
        self._num_padding = max(0, MIN_ROWS - self.num_tokens)
        rows = torch.from_numpy(_pack(segments, self._num_padding)).to(device)
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


def _pack(segments: Sequence[Segment], num_padding: int) -> npt.NDArray[np.int64]:
    """Tokens, positions and slots (page * 16 + offset) of every row, zero in padding: `[3, num_rows]`."""
    lengths = np.array([len(segment.tokens) for segment in segments])
    ends = lengths.cumsum()
    num_tokens = int(ends[-1])
    packed = np.zeros((3, num_tokens + num_padding), np.int64)
    packed[0, :num_tokens] = list(chain.from_iterable([segment.tokens for segment in segments]))
    starts = np.array([segment.start for segment in segments])
    packed[1, :num_tokens] = np.arange(num_tokens) + (starts - ends + lengths).repeat(lengths)
    slots: list[int] = []
    for segment in segments:
        extend_slots(slots, segment.pages, segment.start, segment.start + len(segment.tokens))
    packed[2, :num_tokens] = slots
    return packed
