"""The torch forms over pools: requests of any lengths, their states in slots that are moved on in place."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspine_kernels.gated_delta import linear_attention, reference
from dspine_kernels.gated_delta.chunk_form import chunked
from dspine_kernels.gated_delta.layer import Inputs, States, Weights
from dspine_kernels.ragged_rows import order_of, rows_of, split


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


class SplitPlan:
    """Blocks of a pass in which some requests have one token and nothing to be replayed: these decode, so that they
    are not padded to the longest block."""

    def __init__(
        self,
        slots: Sequence[int],
        lengths: Sequence[int],
        num_pending: Sequence[int],
        parts: Sequence[npt.NDArray[np.int64]],
        *,
        first_row: int,
        device: torch.device,
    ) -> None:
        """`parts` are the requests that decode, and the others."""
        own_rows = [rows_of(np.array(lengths), part) for part in parts]
        self.order = order_of(own_rows, device)
        """[num_rows]: where each row of the plan is among the parts' outputs."""
        self.parts: list[tuple[Tensor, SlotPlan]] = []
        """Rows of the pass, and the plan that they have alone."""
        for requests, rows in zip(parts, own_rows, strict=True):
            columns = [[column[i] for i in requests.tolist()] for column in (slots, lengths, num_pending)]
            own_plan = SlotPlan(*columns, device=device)
            self.parts.append((torch.from_numpy(rows + first_row).to(device), own_plan))


def plan_blocks(
    slots: Sequence[int],
    lengths: Sequence[int],
    num_pending: Sequence[int],
    *,
    first_row: int,
    device: torch.device,
) -> SlotPlan | SplitPlan:
    """See `gated_delta.plan`."""
    padding = max(lengths) - 1 + max(num_pending)
    parts = split((np.array(lengths) == 1) & (np.array(num_pending) == 0), padding)
    if parts is None:
        return SlotPlan(slots, lengths, num_pending, first_row=first_row, device=device)
    return SplitPlan(slots, lengths, num_pending, parts, first_row=first_row, device=device)


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


def verify(inputs: Inputs, weights: Weights, states: States, plan: SlotPlan | SplitPlan) -> Tensor:
    """See `gated_delta.verify_slots`."""
    if isinstance(plan, SplitPlan):
        outs = []
        for rows, part in plan.parts:
            own = inputs.map(functools.partial(torch.index_select, dim=0, index=rows))
            outs.append(_verify(own, weights, states, part))
        return torch.cat(outs).index_select(0, plan.order)
    return _verify(inputs, weights, states, plan)


def _verify(inputs: Inputs, weights: Weights, states: States, plan: SlotPlan) -> Tensor:
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
