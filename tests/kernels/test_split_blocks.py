"""Passes in which some requests decode and others have blocks: each is computed as it would be without the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dspine_kernels import gated_delta, ragged_rows
from dspine_kernels.gated_delta import Inputs, SlotPlan, SplitPlan, States, slots
from tests.kernels.gated_delta_cases import error, make_layer

CPU = torch.device("cpu")
NUM_SLOTS, MAX_PENDING = 8, 15


@given(st.lists(st.integers(1, 6), min_size=1, max_size=8), st.data())
def test_rows_of_parts_are_put_back_in_order(lengths: list[int], data: st.DataObject) -> None:
    is_plain = np.array(data.draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths))))
    parts = [part for part in (np.flatnonzero(is_plain), np.flatnonzero(~is_plain)) if len(part)]
    rows = [ragged_rows.rows_of(np.array(lengths), part) for part in parts]
    owners = np.arange(len(lengths)).repeat(lengths)
    for part, own in zip(parts, rows, strict=True):
        assert owners[own].tolist() == [request for request in part for _ in range(lengths[request])]
    order = ragged_rows.order_of(rows, CPU).numpy()
    assert (np.concatenate(rows)[order] == np.arange(sum(lengths))).all()


@pytest.mark.parametrize(
    ("is_plain", "padding", "is_split"),
    [
        ([1, 1, 0], 30, True),
        ([1, 1, 0], 3, False),
        ([0, 1, 0, 1, 1, 1], 15, True),
        ([1] * 8, 30, False),
        ([0, 0], 30, False),
    ],
)
def test_a_pass_is_split_where_much_would_be_padded(
    is_plain: Sequence[int], padding: int, is_split: bool
) -> None:
    assert (ragged_rows.split(np.array(is_plain, bool), padding) is not None) is is_split


def random_states(seed: int) -> tuple[gated_delta.Weights, Inputs, States]:
    layer, raw = make_layer(40 + NUM_SLOTS * MAX_PENDING, seed=seed)
    rows = raw.map(lambda x: x[0])
    random = torch.Generator().manual_seed(seed)
    heads, key_dim = len(layer.weights.A_log), layer.weights.key_head_dim
    state = torch.randn(NUM_SLOTS, heads, key_dim, layer.value_head_dim, generator=random)
    conv_state = torch.randn(NUM_SLOTS, 3, rows.mixed_qkv.shape[1], generator=random)
    pending = rows.map(lambda x: x[40:].view(NUM_SLOTS, MAX_PENDING, -1).clone())
    return layer.weights, rows.map(lambda x: x[:40]), States(state, conv_state, pending)


@pytest.mark.parametrize(
    ("own_slots", "lengths", "num_pending"),
    [
        ([4, 0, 3, 1, 2], [12, 1, 1, 1, 1], [15, 0, 0, 3, 0]),
        ([0, 1, 2, 3, 4], [1, 1, 1, 1, 16], [0, 0, 0, 0, 0]),
        ([7, 2, 5, 6, 1], [1, 10, 1, 9, 1], [0, 14, 0, 0, 0]),
    ],
)
def test_split_blocks_give_what_padded_ones_give(
    own_slots: list[int], lengths: list[int], num_pending: list[int]
) -> None:
    weights, rows, states = random_states(seed=3)
    padded = States(states.state.clone(), states.conv_state.clone(), states.pending.map(lambda x: x.clone()))
    first_row = 6
    whole = SlotPlan(own_slots, lengths, num_pending, first_row=first_row, device=CPU)
    expected = slots.verify(rows, weights, padded, whole)
    plan = gated_delta.plan(own_slots, lengths, num_pending, first_row=first_row, device=CPU)
    assert isinstance(plan, SplitPlan)
    assert error(gated_delta.verify_slots(rows, weights, states, plan), expected) < 2e-5
    assert error(states.state, padded.state) < 2e-5
    assert torch.equal(states.conv_state, padded.conv_state)
    for slot, length in zip(own_slots, lengths, strict=True):
        for got, kept in zip(states.pending, padded.pending, strict=True):
            assert torch.equal(got[slot, : length - 1], kept[slot, : length - 1])


def test_a_request_that_decodes_is_computed_as_in_a_plain_pass() -> None:
    """To the last bit, whatever blocks there are beside it."""
    own_slots = [0, 3, 4, 7]
    weights, rows, states = random_states(seed=4)
    alone = States(states.state.clone(), states.conv_state.clone(), states.pending)
    plain = gated_delta.plan(own_slots, [1] * 4, [0] * 4, device=CPU)
    expected = gated_delta.verify_slots(rows, weights, alone, plain)
    mixed = gated_delta.plan([*own_slots, 5], [1] * 4 + [7], [0] * 4 + [9], device=CPU)
    got = gated_delta.verify_slots(rows, weights, states, mixed)
    assert torch.equal(got[:4], expected)
    assert torch.equal(states.state[own_slots], alone.state[own_slots])
