from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from dspine_kernels.gated_delta import Inputs, SlotPlan, States, slots, triton
from dspine_kernels.gated_delta.blocks import BlockPlan, plan
from tests.kernels.gated_delta_cases import KERNEL, Layer, error, make_layer, span

CPU = torch.device("cpu")
MAX_PENDING = 15
NUM_SLOTS = 6


def make_pools(layer: Layer, fill: float, dtype: torch.dtype = torch.float32) -> States:
    conv_dim, num_heads = len(layer.weights.conv_weight), len(layer.weights.A_log)
    state = torch.full((NUM_SLOTS, num_heads, layer.weights.key_head_dim, layer.value_head_dim), fill)
    waiting = (
        torch.full((NUM_SLOTS, MAX_PENDING, n), fill, dtype=dtype) for n in (conv_dim, num_heads, num_heads)
    )
    return States(state, torch.full((NUM_SLOTS, KERNEL - 1, conv_dim), fill, dtype=dtype), Inputs(*waiting))


def tensors(states: States) -> list[Tensor]:
    return [states.state, states.conv_state, *states.pending]


def random_pass(
    own_slots: Sequence[int],
    num_pending: Sequence[int],
    num_rows: int,
    *,
    heads: tuple[int, int] = (2, 6),
    dims: tuple[int, int] = (16, 32),
    dtype: torch.dtype = torch.float32,
) -> tuple[Layer, Inputs, States]:
    """Packed inputs, and pools that are NaN wherever a request has nothing."""
    layer, raw = make_layer(num_rows + NUM_SLOTS * (MAX_PENDING + KERNEL), seed=1, heads=heads, dims=dims)
    rows = raw.map(lambda x: x[0].to(dtype))
    states = make_pools(layer, float("nan"), dtype)
    random = torch.Generator().manual_seed(2)
    first = num_rows
    for slot, count in zip(own_slots, num_pending, strict=True):
        states.state[slot] = torch.randn(states.state.shape[1:], generator=random)
        states.conv_state[slot] = rows.mixed_qkv[first : first + KERNEL - 1]
        for pool, x in zip(states.pending, rows, strict=True):
            pool[slot, :count] = x[first + KERNEL : first + KERNEL + count]
        first += KERNEL + MAX_PENDING
    return layer, rows.map(lambda x: x[:num_rows]), states


def copy(states: States) -> States:
    state, conv_state, *pending = (x.clone() for x in tensors(states))
    return States(state, conv_state, Inputs(*pending))


def finite(states: States) -> States:
    state, conv_state, *pending = (x.nan_to_num(7.0) for x in tensors(states))
    return States(state, conv_state, Inputs(*pending))


def check_against_reference(
    own_slots: Sequence[int],
    lengths: Sequence[int],
    num_pending: Sequence[int],
    *,
    heads: tuple[int, int] = (2, 6),
    dims: tuple[int, int] = (16, 32),
    dtype: torch.dtype = torch.float32,
    tolerance: float = 2e-5,
) -> None:
    num_rows = sum(lengths)
    layer, rows, states = random_pass(own_slots, num_pending, num_rows, heads=heads, dims=dims, dtype=dtype)
    wanted_states = finite(states)
    reference_plan = SlotPlan(own_slots, lengths, num_pending, device=CPU)
    wanted = slots.verify(rows, layer.weights, wanted_states, reference_plan)
    before = copy(states)
    own_plan = plan(own_slots, lengths, num_pending, first_row=0, device=CPU)
    out = triton.verify(rows, layer.weights, states, own_plan)
    assert out.dtype == dtype
    assert error(out.float(), wanted.float()) < tolerance
    others = [slot for slot in range(NUM_SLOTS) if slot not in own_slots]
    for got, old in zip(tensors(states), tensors(before), strict=True):
        assert torch.equal(got[others].isnan(), old[others].isnan())
    own = list(own_slots)
    assert error(states.state[own], wanted_states.state[own]) < 2e-5
    assert torch.equal(states.conv_state[own], wanted_states.conv_state[own])
    for slot, length in zip(own_slots, lengths, strict=True):
        for got, kept in zip(states.pending, wanted_states.pending, strict=True):
            assert torch.equal(got[slot, : length - 1], kept[slot, : length - 1])


def test_ragged_blocks_with_any_pending_inputs_equal_the_reference() -> None:
    check_against_reference([4, 0, 3], [5, 16, 1], [15, 0, 3])


@pytest.mark.parametrize(("heads", "dims"), [((1, 1), (32, 16)), ((3, 3), (16, 16))])
def test_other_heads_equal_the_reference(heads: tuple[int, int], dims: tuple[int, int]) -> None:
    check_against_reference([1, 5], [16, 2], [15, 1], heads=heads, dims=dims)


def test_plain_decoding_equals_the_reference() -> None:
    check_against_reference([2, 5, 0], [1, 1, 1], [0, 0, 0])


def test_bfloat16_inputs_are_computed_in_fp32() -> None:
    check_against_reference([2, 1], [7, 16], [4, 11], dtype=torch.bfloat16, tolerance=0.02)


@pytest.mark.parametrize("is_plain", [False, True])
def test_a_request_without_rows_touches_nothing_and_rows_without_request_stay_apart(is_plain: bool) -> None:
    layer, rows, states = random_pass([3, 1], [0, 0], 3)
    rows.mixed_qkv[1:] = float("nan")
    before = copy(states)
    numbers = (torch.tensor(x, dtype=torch.int32) for x in ([0, 1, 1], [3, 1], [0, 0]))
    row_starts, own_slots, num_pending = numbers
    own_plan = BlockPlan(row_starts, own_slots, num_pending, slice(0, 3), is_plain)
    out = triton.verify(rows, layer.weights, states, own_plan)
    assert out.shape[0] == 3
    assert out[0].isfinite().all()
    assert not torch.equal(states.state[3], before.state[3])
    for got, old in zip(tensors(states), tensors(before), strict=True):
        assert torch.equal(got[1].nan_to_num(7.0), old[1].nan_to_num(7.0))


def test_rounds_equal_stepping_also_where_a_block_without_proposals_follows_an_accepted_one() -> None:
    widths, accepted = [16, 1, 5, 1, 1, 3], [16, 1, 2, 1, 1, 3]
    layer, raw = make_layer(sum(accepted) + 16, seed=3, dims=(16, 16))
    wanted, states, conv_states = layer.step(raw)
    pools = make_pools(layer, 0.0)
    start, num_pending = 0, 0
    for width, kept in zip(widths, accepted, strict=True):
        block = span(raw, start, start + width).map(lambda x: x[0])
        own_plan = plan([2], [width], [num_pending], first_row=0, device=CPU)
        out = triton.verify(block, layer.weights, pools, own_plan)
        assert error(out, wanted[0, start : start + width]) < 2e-5
        assert error(pools.state[2], states[start + 1][0]) < 2e-5
        assert torch.equal(pools.conv_state[2], conv_states[start + 1][0])
        start, num_pending = start + kept, kept - 1


def test_repeated_keys_with_full_write_strength_stay_accurate() -> None:
    layer, (mixed_qkv, a, b) = make_layer(31, seed=5, dims=(16, 16))
    hard = Inputs(mixed_qkv[:, :1].expand_as(mixed_qkv), torch.full_like(a, -20.0), torch.full_like(b, 20.0))
    wanted, states, _ = layer.step(hard)
    pools = make_pools(layer, 0.0)
    for start, end, num_pending in ((0, 16, 0), (16, 31, 15)):
        block = span(hard, start, end).map(lambda x: x[0])
        own_plan = plan([0], [end - start], [num_pending], first_row=0, device=CPU)
        out = triton.verify(block, layer.weights, pools, own_plan)
        assert error(out, wanted[0, start:end]) < 2e-5
    assert error(pools.state[0], states[17][0]) < 2e-5
