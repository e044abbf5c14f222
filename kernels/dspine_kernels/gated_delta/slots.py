"""The torch forms over pools: requests of any lengths, their states in slots that are moved on in place."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from dspine_kernels.gated_delta import linear_attention, reference
from dspine_kernels.gated_delta.chunk_form import chunked
from dspine_kernels.gated_delta.layer import Inputs, States, Weights


class SlotPlan:
    """Where consecutive rows of a pass belong: the same in every layer of it."""

    def __init__(
        self,
        slots: Sequence[int],
        lengths: Sequence[int],
        num_pending: Sequence[int] | None = None,
        *,
        first_row: int = 0,
        device: torch.device,
    ) -> None:
        """See `gated_delta.plan`; None as `num_pending` is for prefill chunks."""
        num_rows = sum(lengths)
        self.rows = slice(first_row, first_row + num_rows)
        self.shape = (len(slots), max(lengths))
        self.slots = _as_index(slots, device)
        self.max_pending = max(num_pending or (), default=0)
        self.num_pending = None if num_pending is None else torch.tensor(num_pending, device=device)  # [B]
        self.lengths: Tensor | None = None  # [B]; None where all are equal and nothing needs padding
        if num_rows == self.shape[0] * self.shape[1]:
            return
        self.lengths = torch.tensor(lengths, device=device)
        steps = torch.arange(self.shape[1], device=device)
        valid = steps < self.lengths[:, None]  # [B, max_length]
        first = self.lengths.cumsum(0) - self.lengths
        # [num_rows] index into [B * max_length], and [B * max_length] index into rows
        self._flat = valid.flatten().nonzero().squeeze(1)
        self._padded = (first[:, None] + steps).where(valid, 0).flatten()

    def pad(self, packed: Tensor) -> Tensor:
        """`[num_tokens, ...]` of the whole pass to `[B, max_length, ...]`."""
        rows = packed[self.rows]
        if self.lengths is not None:
            rows = rows[self._padded]
        return rows.view(*self.shape, *rows.shape[1:])

    def unpad(self, padded: Tensor) -> Tensor:
        """`[B, max_length, ...]` to the rows of this plan."""
        rows = padded.flatten(0, 1)
        return rows if self.lengths is None else rows[self._flat]


def prefill(inputs: Inputs, weights: Weights, states: States, plan: SlotPlan) -> Tensor:
    """See `gated_delta.prefill_slots`."""
    slots = plan.slots
    chunk_form: reference.ChunkForm = chunked
    if linear_attention.serves(inputs.mixed_qkv):
        chunk_form = functools.partial(linear_attention.chunked, dtype=inputs.mixed_qkv.dtype)
    out, state, conv_state = reference.prefill(
        inputs.map(plan.pad),
        weights,
        state=_take(states.state, slots),
        conv_state=_take(states.conv_state, slots),
        lengths=plan.lengths,
        chunk_form=chunk_form,
    )
    _put(states.state, slots, state)
    _put(states.conv_state, slots, conv_state)
    return plan.unpad(out)


def verify(inputs: Inputs, weights: Weights, states: States, plan: SlotPlan) -> Tensor:
    """See `gated_delta.verify_slots`."""
    assert plan.num_pending is not None
    if plan.shape[1] == 1 and not plan.max_pending:
        return _decode(inputs, weights, states, plan)
    slots = plan.slots
    blocks = inputs.map(plan.pad)  # [B, W, ...]
    out, state, conv_state = reference.verify(
        blocks,
        weights,
        state=_take(states.state, slots),
        conv_state=_take(states.conv_state, slots),
        pending=states.pending.map(lambda x: _take(x[:, : plan.max_pending], slots)),
        num_pending=plan.num_pending,
    )
    _put(states.state, slots, state)
    _put(states.conv_state, slots, conv_state)
    if num_proposals := plan.shape[1] - 1:
        for pool, block in zip(states.pending, blocks, strict=True):
            _put(pool[:, :num_proposals], slots, block[:, 1:])
    return plan.unpad(out)


def _decode(inputs: Inputs, weights: Weights, states: States, plan: SlotPlan) -> Tensor:
    slots = plan.slots
    state, conv_state = _take(states.state, slots), _take(states.conv_state, slots)
    out = reference.decode(inputs.map(lambda x: x[plan.rows]), weights, state=state, conv_state=conv_state)
    if isinstance(slots, Tensor):
        _put(states.state, slots, state)
        _put(states.conv_state, slots, conv_state)
    return out


def _as_index(slots: Sequence[int], device: torch.device) -> slice | Tensor:
    """Neighbouring slots in order, the usual case, need no copies."""
    first, count = slots[0], len(slots)
    if list(slots) == list(range(first, first + count)):
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
