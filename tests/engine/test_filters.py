from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dspine_cluster.engine.filters import FilterRows, target_probs
from dspine_cluster.types import SamplingParams

CPU = torch.device("cpu")

params_strategy = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.3, 0.7, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 3, 5, 50]),
    top_p=st.sampled_from([0.05, 0.5, 0.83, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.02, 0.3]),
)


def _probs(logits: Tensor, params: list[SamplingParams]) -> Tensor:
    filters = FilterRows.build(params, [1] * len(params), vocab_size=logits.shape[-1], device=CPU)
    return target_probs(logits, filters)


def _probs_by_definition(logits: list[float], params: SamplingParams) -> list[float]:
    """One step after another, in Python floats; the support is a list of token ids, likeliest first."""
    weights = [math.exp((logit - max(logits)) / params.temperature) for logit in logits]
    support = sorted(range(len(logits)), key=lambda token: (-weights[token], token))
    support = support[: params.top_k or None]
    mass = sum(weights[token] for token in support)
    nucleus: list[int] = []
    while sum(weights[token] for token in nucleus) < params.top_p * mass and len(nucleus) < len(support):
        nucleus.append(support[len(nucleus)])
    kept = {token for token in nucleus if weights[token] >= params.min_p * weights[nucleus[0]]}
    total = sum(weights[token] for token in kept)
    return [weights[token] / total if token in kept else 0.0 for token in range(len(logits))]


@given(st.lists(params_strategy, min_size=1, max_size=4), st.integers(0, 2**20))
def test_each_row_equals_the_sequential_definition(params: list[SamplingParams], seed: int) -> None:
    logits = torch.randn(len(params), 19, generator=torch.Generator().manual_seed(seed)) * 3
    expected = [_probs_by_definition(row, each) for row, each in zip(logits.tolist(), params, strict=True)]
    torch.testing.assert_close(_probs(logits, params), torch.tensor(expected), rtol=1e-5, atol=1e-7)


@given(st.lists(params_strategy, min_size=2, max_size=5), st.integers(0, 2**20))
def test_a_row_does_not_depend_on_the_others(params: list[SamplingParams], seed: int) -> None:
    logits = torch.randint(-3, 4, (len(params), 40), generator=torch.Generator().manual_seed(seed)).float()
    together = _probs(logits, params)
    for row, each in enumerate(params):
        torch.testing.assert_close(together[row], _probs(logits[row : row + 1], [each])[0], rtol=0, atol=0)


def test_equal_logits_rank_by_token_id() -> None:
    logits = torch.tensor([[1.0, 2.0, 1.0, 2.0, 1.0, 1.0]])
    top_3 = _probs(logits, [SamplingParams(top_k=3)])
    assert top_3.nonzero()[:, 1].tolist() == [0, 1, 3]
    top_p = _probs(torch.zeros(1, 8), [SamplingParams(top_p=0.5)])
    assert top_p.tolist() == [[0.25] * 4 + [0.0] * 4]


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log()
    for top_p, num_kept in [(0.5, 1), (0.51, 2), (0.75, 2), (0.76, 3), (0.875, 3), (0.9, 4), (1e-9, 1)]:
        assert int(_probs(logits, [SamplingParams(top_p=top_p)]).count_nonzero()) == num_kept


def test_top_p_counts_the_mass_that_top_k_left() -> None:
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    probs = _probs(logits, [SamplingParams(top_k=2, top_p=0.56)])
    assert probs[0].tolist() == pytest.approx([1.0, 0.0, 0.0, 0.0])


def test_a_nucleus_wider_than_the_first_guess_is_complete() -> None:
    logits = torch.zeros(2, 1000)
    logits[0, 7] = 9.0
    probs = _probs(logits, [SamplingParams(top_p=0.6), SamplingParams(top_p=0.6)])
    assert probs[0].count_nonzero() == 1
    assert probs[1].nonzero()[:, 0].tolist() == list(range(600))


def test_a_wide_top_k_beside_an_unlimited_row_is_complete() -> None:
    logits = torch.randn(2, 1000, generator=torch.Generator().manual_seed(0)) * 0.1
    probs = _probs(logits, [SamplingParams(top_k=300), SamplingParams(top_p=0.01)])
    assert probs[0].count_nonzero() == 300
    assert set(probs[0].nonzero()[:, 0].tolist()) == set(logits[0].topk(300).indices.tolist())


def test_a_masked_token_has_no_probability_and_low_temperatures_stay_finite() -> None:
    logits = torch.tensor([[-torch.inf, 30.0, 29.0]])
    for temperature in (1e-30, 1.0):
        probs = _probs(logits, [SamplingParams(temperature=temperature)])
        assert probs[0, 0] == 0.0
        assert probs.sum().item() == pytest.approx(1.0)


def test_logits_are_left_as_they_were() -> None:
    logits = torch.randn(1, 30, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    _probs(logits, [SamplingParams(temperature=0.5, top_k=4, top_p=0.9, min_p=0.1)])
    assert torch.equal(logits, before)
