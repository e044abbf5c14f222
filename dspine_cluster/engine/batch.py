"""One pass's packed tokens, and the pools as the model's layers see them during it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dspine_cluster.core.page_pool import slot_of
from dspine_cluster.engine.pools import KvPool, StatePool
from dspine_cluster.models.cache import GatedDeltaWeights
from dspine_cluster.types import PAGE_TOKENS
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
        num_rows = sum(lengths)
        self.rows = slice(first_row, first_row + num_rows)
        self.shape = (len(segments), max(lengths))
        self.state_slots = _as_index([segment.state_slot for segment in segments], device)
        self.attention = paged_attention.plan(
            [segment.pages for segment in segments],
            lengths,
            [segment.start for segment in segments],
            page_tokens=PAGE_TOKENS,
            device=device,
        )
        self.lengths: Tensor | None = None  # [batch]; None where all are equal and nothing needs padding
        if num_rows == self.shape[0] * self.shape[1]:
            return
        self.lengths = torch.tensor(lengths, device=device)
        steps = torch.arange(self.shape[1], device=device)
        valid = steps < self.lengths[:, None]  # [batch, max_length]
        first = self.lengths.cumsum(0) - self.lengths
        # [num_rows] index into [batch * max_length], and [batch * max_length] index into rows
        self._flat = valid.flatten().nonzero().squeeze(1)
        self._padded = (first[:, None] + steps).where(valid, 0).flatten()

    def pad(self, packed: Tensor) -> Tensor:
        """[num_tokens, ...] of the whole pass to [batch, max_length, ...] of this group."""
        rows = packed[self.rows]
        if self.lengths is not None:
            rows = rows[self._padded]
        return rows.view(*self.shape, *rows.shape[1:])

    def unpad(self, padded: Tensor) -> Tensor:
        """[batch, max_length, ...] to the group's own rows."""
        rows = padded.flatten(0, 1)
        return rows if self.lengths is None else rows[self._flat]


class PackedBatch:
    """The `Cache` of one pass: blocks first, then prefill chunks, then padding rows that touch nothing."""

    def __init__(
        self, blocks: Sequence[Segment], chunks: Sequence[Segment], kv_pool: KvPool, state_pool: StatePool
    ) -> None:
        device = kv_pool.keys.device
        segments = [*blocks, *chunks]
        self._kv_pool, self._state_pool = kv_pool, state_pool
        num_block_rows = sum(len(block.tokens) for block in blocks)
        self._blocks = SegmentGroup(blocks, 0, device) if blocks else None
        self._chunks = SegmentGroup(chunks, num_block_rows, device) if chunks else None
        num_pending = [state_pool.num_pending[block.state_slot] for block in blocks]
        self._max_pending = max(num_pending, default=0)
        self._num_pending = torch.tensor(num_pending, device=device)  # [num_blocks]
        tokens = [token for segment in segments for token in segment.tokens]
        positions = [p for segment in segments for p in segment.positions]
        slots = [slot_of(segment.pages, p) for segment in segments for p in segment.positions]
        self.num_tokens = len(tokens)
        self._num_padding = max(0, MIN_ROWS - self.num_tokens)
        padding = [0] * self._num_padding
        rows = torch.tensor([tokens + padding, positions + padding, slots + padding], device=device)
        self.tokens, self.positions, slots_of_rows = rows.unbind()  # each [num_rows]
        self.slots = slots_of_rows[: self.num_tokens]  # page * 16 + offset

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys, values = self._kv_pool.keys[layer], self._kv_pool.values[layer]
        paged_attention.write(key[: self.num_tokens], value[: self.num_tokens], keys, values, self.slots)
        scale = query.shape[-1] ** -0.5
        parts = [
            paged_attention.attend(query[group.rows], keys, values, group.attention, scale)
            for group in (self._blocks, self._chunks)
            if group is not None
        ]
        return self._join(parts)  # [num_rows, num_heads, head_dim]

    def gated_delta(
        self, layer: int, mixed_qkv: Tensor, a: Tensor, b: Tensor, weights: GatedDeltaWeights
    ) -> Tensor:
        parts = []
        if self._blocks is not None:
            is_plain = self._blocks.shape[1] == 1 and not self._max_pending
            run = self._decode if is_plain else self._replay
            parts.append(run(self._blocks, layer, mixed_qkv, a, b, weights))
        if self._chunks is not None:
            parts.append(self._prefill(self._chunks, layer, mixed_qkv, a, b, weights))
        return self._join(parts)  # [num_rows, num_value_heads, value_head_dim]

    def _join(self, parts: list[Tensor]) -> Tensor:
        """The groups' rows one after the other, and the padding."""
        if self._num_padding:
            parts.append(parts[0].new_zeros((self._num_padding, *parts[0].shape[1:])))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _decode(
        self,
        group: SegmentGroup,
        layer: int,
        mixed_qkv: Tensor,
        a: Tensor,
        b: Tensor,
        weights: GatedDeltaWeights,
    ) -> Tensor:
        slots, rows = group.state_slots, group.rows
        state, conv_state = self._state_pool.state[layer], self._state_pool.conv_state[layer]
        own_state, own_conv_state = _take(state, slots), _take(conv_state, slots)
        out = weights.decode(mixed_qkv[rows], a[rows], b[rows], state=own_state, conv_state=own_conv_state)
        if isinstance(slots, Tensor):
            _put(state, slots, own_state)
            _put(conv_state, slots, own_conv_state)
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
        state, conv_state = pool.state[layer], pool.conv_state[layer]
        new, all_pending = (new_qkv, new_a, new_b), (pool.pending_qkv, pool.pending_a, pool.pending_b)
        pending = [_take(x[layer, :, : self._max_pending], slots) for x in all_pending]
        out, new_state, new_conv_state = weights.verify(
            new_qkv,
            new_a,
            new_b,
            state=_take(state, slots),
            conv_state=_take(conv_state, slots),
            pending_qkv=pending[0],
            pending_a=pending[1],
            pending_b=pending[2],
            num_pending=self._num_pending,
        )
        _put(state, slots, new_state)
        _put(conv_state, slots, new_conv_state)
        num_proposals = group.shape[1] - 1
        if num_proposals:
            for pool_inputs, inputs in zip(all_pending, new, strict=True):
                _put(pool_inputs[layer, :, :num_proposals], slots, inputs[:, 1:])
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
        slots = group.state_slots
        state, conv_state = self._state_pool.state[layer], self._state_pool.conv_state[layer]
        out, new_state, new_conv_state = weights.prefill(
            group.pad(mixed_qkv),
            group.pad(a),
            group.pad(b),
            state=_take(state, slots),
            conv_state=_take(conv_state, slots),
            lengths=group.lengths,
        )
        _put(state, slots, new_state)
        _put(conv_state, slots, new_conv_state)
        return group.unpad(out)


def _as_index(slots: list[int], device: torch.device) -> slice | Tensor:
    """Neighbouring slots in order, the usual case, need no copies."""
    first, count = slots[0], len(slots)
    if slots == list(range(first, first + count)):
        return slice(first, first + count)
    return torch.tensor(slots, device=device)


def _take(pool: Tensor, slots: slice | Tensor) -> Tensor:
    """The slots' rows: the pool's own where the slots are neighbours, else a copy."""
    return pool[slots] if isinstance(slots, slice) else pool.index_select(0, slots)


def _put(pool: Tensor, slots: slice | Tensor, rows: Tensor) -> None:
    if isinstance(slots, slice):
        pool[slots] = rows
    else:
        pool.index_copy_(0, slots, rows.to(pool.dtype))
