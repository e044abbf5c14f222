from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dspine_kernels.gated_delta import Inputs, Weights
from tests.kernels.gated_delta_cases import Layer, error, make_layer, span


@pytest.mark.parametrize("num_tokens", [1, 2, 63, 64, 65, 200])
@pytest.mark.parametrize(("heads", "dims"), [((2, 6), (16, 8)), ((3, 3), (8, 24)), ((1, 5), (32, 32))])
def test_prefill_equals_transformers_recurrent_form(
    num_tokens: int, heads: tuple[int, int], dims: tuple[int, int]
) -> None:
    layer, raw = make_layer(num_tokens, seed=1, heads=heads, dims=dims)
    out, state, conv_state = layer.prefill(raw)
    wanted, states, conv_states = layer.step(raw)
    assert error(out, wanted) < 2e-5
    assert error(state, states[-1]) < 2e-5
    assert torch.equal(conv_state, conv_states[-1])


def test_prefill_in_pieces_equals_prefill_at_once() -> None:
    layer, raw = make_layer(150, seed=2)
    wanted, wanted_state, wanted_conv_state = layer.prefill(raw)
    past, outs = None, []
    for start, end in ((0, 1), (1, 3), (3, 70), (70, 150)):
        out, *states = layer.prefill(span(raw, start, end), past)
        past = (states[0], states[1])
        outs.append(out)
    assert past is not None
    assert error(torch.cat(outs, 1), wanted) < 2e-5
    assert error(past[0], wanted_state) < 2e-5
    assert torch.equal(past[1], wanted_conv_state)


def test_padding_touches_neither_state_nor_outputs() -> None:
    layer, raw = make_layer(70, seed=3)
    _, states, conv_states = layer.step(raw)
    lengths = torch.tensor([70, 1, 0, 33])
    beyond = (torch.arange(70) >= lengths[:, None])[..., None]
    padded = raw.map(lambda x: x.expand(4, -1, -1).masked_fill(beyond, float("nan")))
    out, state, conv_state = layer.prefill(padded, lengths=lengths)
    wanted = layer.prefill(raw)[0][0]
    for row, length in enumerate(lengths.tolist()):
        assert error(state[row], states[length][0]) < 2e-5
        assert torch.equal(conv_state[row], conv_states[length][0])
        if length:
            assert error(out[row, :length], wanted[:length]) < 2e-5


@pytest.mark.parametrize("num_tokens", [1, 20, 63, 64, 90])
def test_a_row_does_not_depend_on_how_long_the_rows_beside_it_are(num_tokens: int) -> None:
    layer, raw = make_layer(200, seed=9)
    alone = layer.prefill(span(raw, 0, num_tokens))
    lengths = torch.tensor([num_tokens, 200])
    beside = layer.prefill(raw.map(lambda x: x.repeat(2, 1, 1)), lengths=lengths)
    assert torch.equal(beside[0][:1, :num_tokens], alone[0])
    assert torch.equal(beside[1][:1], alone[1])
    assert torch.equal(beside[2][:1], alone[2])


def test_gradients_equal_those_of_the_recurrent_form() -> None:
    layer, raw = make_layer(90, seed=4)
    leaves = [x.clone().requires_grad_() for x in (*raw, *layer.weights[:3])]
    inputs = Inputs(*leaves[:3])
    trained = Layer(Weights(leaves[3], leaves[4], leaves[5], *layer.weights[3:]), layer.value_head_dim)
    towards = torch.randn(90, 6, 8, generator=torch.Generator().manual_seed(0))
    got = torch.autograd.grad((trained.prefill(inputs)[0] * towards).sum(), leaves)
    wanted = torch.autograd.grad((trained.step(inputs)[0] * towards).sum(), leaves)
    for mine, theirs in zip(got, wanted, strict=True):
        assert error(mine, theirs) < 1e-4 * float(theirs.abs().max())


def test_repeated_keys_with_full_write_strength_stay_accurate() -> None:
    layer, (mixed_qkv, a, b) = make_layer(64, seed=5)
    hard = Inputs(mixed_qkv[:, :1].expand_as(mixed_qkv), torch.full_like(a, -20.0), torch.full_like(b, 20.0))
    out, state, _ = layer.prefill(hard)
    wanted, states, _ = layer.step(hard)
    assert error(out, wanted) < 2e-5
    assert error(state, states[-1]) < 2e-5


@given(
    rounds=st.lists(st.tuples(st.integers(1, 16), st.integers(1, 16)), min_size=1, max_size=8),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_any_split_into_verified_blocks_equals_stepping(rounds: list[tuple[int, int]], seed: int) -> None:
    """A round verifies a width of tokens and keeps the first and perhaps more; the others come again."""
    kept = [min(accepted, width) for width, accepted in rounds]
    layer, raw = make_layer(sum(kept) + 16, seed)
    wanted, states, conv_states = layer.step(raw)
    past = (states[0], conv_states[0])
    pending, num_pending, start = span(raw, 0, 0), 0, 0
    for (width, _), accepted in zip(rounds, kept, strict=True):
        block = span(raw, start, start + width)
        out, *rolled = layer.verify(block, past, pending, [num_pending])
        assert error(out, wanted[:, start : start + width]) < 2e-5
        assert error(rolled[0], states[start + 1]) < 2e-5
        assert torch.equal(rolled[1], conv_states[start + 1])
        past = (rolled[0], rolled[1])
        pending, num_pending, start = span(block, 1, width), accepted - 1, start + accepted


def test_rows_with_different_pending_inputs_do_not_disturb_each_other() -> None:
    layer, raw = make_layer(40, seed=6)
    wanted, states, conv_states = layer.step(raw)
    num_pending, lengths = [0, 3, 16], [1, 16, 5]
    pending = raw.map(lambda x: torch.full((3, 16, x.shape[-1]), 9.0))
    new = raw.map(lambda x: torch.full((3, 16, x.shape[-1]), -9.0))
    for row, (count, length) in enumerate(zip(num_pending, lengths, strict=True)):
        for x, old_rows, new_rows in zip(raw, pending, new, strict=True):
            old_rows[row, :count] = x[0, 5 : 5 + count]
            new_rows[row, :length] = x[0, 5 + count : 5 + count + length]
    past = (states[5].expand(3, -1, -1, -1), conv_states[5].expand(3, -1, -1))
    out, state, conv_state = layer.verify(new, past, pending, num_pending)
    for row, (count, length) in enumerate(zip(num_pending, lengths, strict=True)):
        assert error(out[row, :length], wanted[0, 5 + count : 5 + count + length]) < 2e-5
        assert error(state[row], states[6 + count][0]) < 2e-5
        assert torch.equal(conv_state[row], conv_states[6 + count][0])


@pytest.mark.parametrize("width", [1, 2, 16])
def test_the_anchor_reaches_the_state_and_no_proposal_does(width: int) -> None:
    layer, raw = make_layer(20, seed=7)
    _, states, conv_states = layer.step(raw)
    past = (states[4], conv_states[4])
    _, state, conv_state = layer.verify(span(raw, 4, 4 + width), past, span(raw, 0, 0), [0])
    assert error(state, states[5]) < 2e-5
    assert torch.equal(conv_state, conv_states[5])


@pytest.mark.parametrize("heads", [(1, 1), (2, 2), (2, 6), (3, 12)])
def test_decoding_one_by_one_equals_stepping_and_moves_the_states_in_place(heads: tuple[int, int]) -> None:
    layer, raw = make_layer(9, seed=9, heads=heads)
    wanted, states, conv_states = layer.step(raw)
    past = (states[0].clone(), conv_states[0].clone())
    for token in range(9):
        out = layer.decode(span(raw, token, token + 1), past)
        assert error(out, wanted[:, token]) < 2e-5
        assert error(past[0], states[token + 1]) < 2e-5
        assert torch.equal(past[1], conv_states[token + 1])


def test_requests_decoded_together_do_not_disturb_each_other() -> None:
    layer, raw = make_layer(12, seed=10)
    wanted, states, conv_states = layer.step(raw)
    starts = [2, 7, 4]
    rows = raw.map(lambda x: torch.cat([x[:, start : start + 1] for start in starts]))
    past = (torch.cat([states[s] for s in starts]), torch.cat([conv_states[s] for s in starts]))
    out = layer.decode(rows, past)
    assert error(out, torch.cat([wanted[:, s] for s in starts])) < 2e-5
    assert error(past[0], torch.cat([states[s + 1] for s in starts])) < 2e-5


def test_bfloat16_inputs_are_computed_in_fp32() -> None:
    layer, raw = make_layer(70, seed=8)
    rounded = raw.map(lambda x: x.bfloat16())
    out, state, conv_state = layer.prefill(rounded)
    exact, exact_state, _ = layer.prefill(rounded.map(lambda x: x.float()))
    assert (out.dtype, conv_state.dtype) == (torch.bfloat16, torch.bfloat16)
    assert torch.equal(out, exact.bfloat16())
    assert torch.equal(state, exact_state)
