"""One pass's packed tokens, and the pools as the model's layers see them during it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dspine_cluster.core.page_pool import num_pages_for, slot_of
from dspine_cluster.engine.pools import KvPool, StatePool
from dspine_cluster.models.cache import GatedDeltaWeights
from dspine_kernels import paged_attention

MIN_ROWS = 4
"""Matrix products of fewer rows may differ from larger ones in the last bits, so packed rows are padded to this."""


@dataclass(frozen=True, slots=True)
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

    def __init__(self, segments: Sequence[Segment], first_row: int, device: torch.device) -> None:
        lengths = [len(segment.tokens) for segment in segments]
        self.num_rows = sum(lengths)
        self.rows = slice(first_row, first_row + self.num_rows)
        self.lengths = torch.tensor(lengths, device=device)  # [batch]
        self.context_lengths = torch.tensor([segment.start for segment in segments], device=device)  # [batch]
        self.state_slots = torch.tensor(
            [segment.state_slot for segment in segments], device=device
        )  # [batch]
        num_pages = [num_pages_for(segment.positions.stop) for segment in segments]
        table = [
            [*s.pages[:n], *[0] * (max(num_pages) - n)] for s, n in zip(segments, num_pages, strict=True)
        ]
        self.page_table = torch.tensor(table, device=device)  # [batch, max_pages]
        self.shape = (len(segments), max(lengths))
        steps = torch.arange(self.shape[1], device=device)
        valid = steps < self.lengths[:, None]  # [batch, max_length]
        self._flat = valid.flatten().nonzero().squeeze(1)  # [num_rows] index into [batch * max_length]
        first = self.lengths.cumsum(0) - self.lengths
        self._padded = (
            (first[:, None] + steps).where(valid, 0).flatten()
        )  # [batch * max_length] index into rows
        self._is_rectangular = self.num_rows == self.shape[0] * self.shape[1]

    def pad(self, packed: Tensor) -> Tensor:
        """[num_tokens, ...] of the whole pass to [batch, max_length, ...] of this group."""
        rows = packed[self.rows]
        if not self._is_rectangular:
            rows = rows[self._padded]
        return rows.view(*self.shape, *rows.shape[1:])

    def unpad(self, padded: Tensor) -> Tensor:
        """[batch, max_length, ...] to the group's own rows."""
        rows = padded.flatten(0, 1)
        return rows if self._is_rectangular else rows[self._flat]


class PackedBatch:
    """The `Cache` of one pass: blocks first, then prefill chunks, then padding rows that touch nothing."""

    def __init__(
        self, blocks: Sequence[Segment], chunks: Sequence[Segment], kv_pool: KvPool, state_pool: StatePool
    ) -> None:
        device = kv_pool.keys.device
        segments = [*blocks, *chunks]
        self._kv_pool, self._state_pool = kv_pool, state_pool
        self._blocks = SegmentGroup(blocks, 0, device) if blocks else None
        num_block_rows = self._blocks.num_rows if self._blocks else 0
        self._chunks = SegmentGroup(chunks, num_block_rows, device) if chunks else None
        if self._blocks is not None:
            # The same in every layer, and asking a device how many are pending waits for it.
            self._num_pending = state_pool.num_pending[self._blocks.state_slots]  # [num_blocks]
            self._max_pending = int(self._num_pending.max())
        tokens = [token for segment in segments for token in segment.tokens]
        positions = [p for segment in segments for p in segment.positions]
        slots = [slot_of(segment.pages, p) for segment in segments for p in segment.positions]
        self.num_tokens = len(tokens)
        padding = [0] * max(0, MIN_ROWS - len(tokens))
        self.tokens = torch.tensor([*tokens, *padding], device=device)  # [num_rows]
        self.positions = torch.tensor([*positions, *padding], device=device)  # [num_rows]
        self.slots = torch.tensor(slots, device=device)  # [num_tokens] page * 16 + offset

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys, values = self._kv_pool.keys[layer], self._kv_pool.values[layer]
        paged_attention.write(key[: self.num_tokens], value[: self.num_tokens], keys, values, self.slots)
        out = torch.zeros_like(query)  # [num_rows, num_heads, head_dim]
        for group in (self._blocks, self._chunks):
            if group is not None:
                out[group.rows] = paged_attention.attend(
                    query[group.rows],
                    keys,
                    values,
                    group.page_table,
                    group.lengths,
                    group.context_lengths,
                    scale=query.shape[-1] ** -0.5,
                )
        return out

    def gated_delta(
        self, layer: int, mixed_qkv: Tensor, a: Tensor, b: Tensor, weights: GatedDeltaWeights
    ) -> Tensor:
        delta = weights.config
        out = mixed_qkv.new_zeros((mixed_qkv.shape[0], delta.num_value_heads, delta.value_head_dim))
        if self._blocks is not None:
            out[self._blocks.rows] = self._replay(self._blocks, layer, mixed_qkv, a, b, weights)
        if self._chunks is not None:
            out[self._chunks.rows] = self._prefill(self._chunks, layer, mixed_qkv, a, b, weights)
        return out

    def _replay(
        self,
        group: SegmentGroup,
        layer: int,
        mixed_qkv: Tensor,
        a: Tensor,
        b: Tensor,
        weights: GatedDeltaWeights,
    ) -> Tensor:
        pool, slots = self._state_pool, group.state_slots
        new_qkv, new_a, new_b = group.pad(mixed_qkv), group.pad(a), group.pad(b)
        width = self._max_pending
        out, state, conv_state = weights.verify(
            new_qkv,
            new_a,
            new_b,
            state=pool.state[layer, slots],
            conv_state=pool.conv_state[layer, slots],
            pending_qkv=pool.pending_qkv[layer, slots, :width],
            pending_a=pool.pending_a[layer, slots, :width],
            pending_b=pool.pending_b[layer, slots, :width],
            num_pending=self._num_pending,
        )
        pool.state[layer, slots] = state
        pool.conv_state[layer, slots] = conv_state
        num_new = group.shape[1]
        pool.pending_qkv[layer, slots, :num_new] = new_qkv
        pool.pending_a[layer, slots, :num_new] = new_a
        pool.pending_b[layer, slots, :num_new] = new_b
        return group.unpad(out)

    def _prefill(
        self,
        group: SegmentGroup,
        layer: int,
        mixed_qkv: Tensor,
        a: Tensor,
        b: Tensor,
        weights: GatedDeltaWeights,
    ) -> Tensor:
        pool, slots = self._state_pool, group.state_slots
        out, state, conv_state = weights.prefill(
            group.pad(mixed_qkv),
            group.pad(a),
            group.pad(b),
            state=pool.state[layer, slots],
            conv_state=pool.conv_state[layer, slots],
            lengths=group.lengths,
        )
        pool.state[layer, slots] = state
        pool.conv_state[layer, slots] = conv_state
        return group.unpad(out)
