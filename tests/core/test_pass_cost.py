from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.cost_curve import CostCurve
from dspine_cluster.core.online_fit import OnlineFit
from dspine_cluster.core.pass_cost import PassCost

Seconds = Callable[[int, int, int], float]
"""Of requests, tokens and K/V tokens."""


def roofline_s(num_requests: int, num_tokens: int, num_kv_tokens: int) -> float:
    return 0.001 + max(0.0125, 7e-5 * num_tokens) + 3.5e-5 * num_requests + 1.5e-8 * num_kv_tokens


def learn(cost: PassCost, seconds: Seconds, *, num: int = 400, noise: float = 0.0) -> None:
    random = Random(0)
    for _ in range(num):
        num_requests = random.choice([1, 2, 4, 8, 16, 32, 64])
        num_tokens = num_requests * random.randint(1, 16)
        num_kv_tokens = num_requests * random.randint(100, 3000)
        taken_s = seconds(num_requests, num_tokens, num_kv_tokens) * random.lognormvariate(0.0, noise)
        cost.note(
            num_requests=num_requests,
            num_tokens=num_tokens,
            num_prefill_tokens=0,
            num_kv_tokens=num_kv_tokens,
            taken_s=taken_s,
        )


def curve(cost: PassCost, num_requests: int, num_kv_tokens: int | None = None) -> CostCurve:
    kv = num_requests * 1500 if num_kv_tokens is None else num_kv_tokens
    return cost.curve(num_requests=num_requests, num_prefill_tokens=0, num_kv_tokens=kv)


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize(
    ("num_requests", "num_tokens"), [(1, 1), (1, 16), (8, 8), (8, 128), (64, 64), (64, 700)]
)
def test_a_roofline_is_learnt(noise: float, num_requests: int, num_tokens: int) -> None:
    cost = PassCost()
    learn(cost, roofline_s, noise=noise)
    expected = roofline_s(num_requests, num_tokens, num_requests * 1500)
    assert curve(cost, num_requests).seconds(num_tokens) == pytest.approx(expected, rel=0.1)


def test_the_steps_of_buckets_are_learnt() -> None:
    buckets = (8, 16, 32, 64, 128, 256, 512, 1024)

    def padded_s(num_requests: int, num_tokens: int, num_kv_tokens: int) -> float:
        return 0.002 + 1e-4 * next(b for b in buckets if b >= num_tokens)

    cost = PassCost(buckets)
    learn(cost, padded_s)
    of_eight = curve(cost, 8)
    assert of_eight.seconds(33) == of_eight.seconds(64) == pytest.approx(padded_s(8, 64, 0), rel=0.03)
    assert of_eight.seconds(65) == pytest.approx(padded_s(8, 65, 0), rel=0.03)


def test_prompt_tokens_may_cost_something_else() -> None:
    cost = PassCost()
    random = Random(0)
    for _ in range(200):
        num_prefill_tokens = random.choice([0, 0, 64, 256, 512])
        num_tokens = num_prefill_tokens + random.randint(1, 128)
        taken_s = 0.005 + 2e-4 * num_tokens - 1e-4 * num_prefill_tokens
        cost.note(
            num_requests=8,
            num_tokens=num_tokens,
            num_prefill_tokens=num_prefill_tokens,
            num_kv_tokens=0,
            taken_s=taken_s,
        )
    with_prompt = cost.curve(num_requests=8, num_prefill_tokens=512, num_kv_tokens=0)
    assert with_prompt.seconds(520) == pytest.approx(0.005 + 2e-4 * 520 - 1e-4 * 512, rel=0.05)
    assert curve(cost, 8, 0).seconds(100) == pytest.approx(0.025, rel=0.05)
    assert cost.prefill_s(8, 512) == pytest.approx(1e-4 * 512, rel=0.1)


def test_what_the_first_proposal_costs_is_learnt() -> None:
    def with_jump_s(num_requests: int, num_tokens: int, num_kv_tokens: int) -> float:
        return 0.007 + 1e-4 * num_tokens + (0.002 if num_tokens > num_requests else 0.0)

    cost = PassCost()
    learn(cost, with_jump_s)
    of_eight = curve(cost, 8)
    assert of_eight.seconds(8) == pytest.approx(0.0078, rel=0.03)
    assert of_eight.seconds(9) == pytest.approx(0.0099, rel=0.03)
    assert of_eight.stretch(8)[0] == 8, "the next token costs more"
    assert of_eight.stretch(9)[0] > 9
    assert curve(cost, 16).seconds(16) == pytest.approx(0.0086, rel=0.03)


def test_beyond_what_was_seen_the_last_slope_goes_on() -> None:
    cost = PassCost()
    learn(cost, lambda requests, tokens, kv: 0.001 + 1e-4 * tokens)
    assert curve(cost, 8).seconds(2000) == pytest.approx(0.201, rel=0.1)


durations = st.lists(st.tuples(st.integers(1, 600), st.floats(1e-4, 1.0)), min_size=1, max_size=20)


@given(durations, st.sampled_from([(), (4, 16, 64)]))
def test_no_pass_is_predicted_to_get_faster_by_more_tokens(
    passes: list[tuple[int, float]], buckets: Sequence[int]
) -> None:
    cost = PassCost(buckets)
    for num_tokens, taken_s in passes:
        cost.note(
            num_requests=1, num_tokens=num_tokens, num_prefill_tokens=0, num_kv_tokens=0, taken_s=taken_s
        )
    times = [curve(cost, 1).seconds(num_tokens) for num_tokens in range(1, 1500, 7)]
    assert times == sorted(times)
    assert times[0] > 0.0


@given(durations, st.sampled_from([(), (4, 16, 64)]), st.integers(1, 1200))
def test_within_a_stretch_every_token_costs_the_same(
    passes: list[tuple[int, float]], buckets: Sequence[int], first: int
) -> None:
    cost = PassCost(buckets)
    for num_tokens, taken_s in passes:
        cost.note(
            num_requests=1, num_tokens=num_tokens, num_prefill_tokens=0, num_kv_tokens=0, taken_s=taken_s
        )
    of_one = curve(cost, 1)
    until, token_s = of_one.stretch(first)
    last = min(until, first + 100)
    start_s = of_one.seconds(first)
    if start_s > of_one.min_s:
        assert of_one.seconds(last) == pytest.approx(start_s + (last - first) * token_s)


def alternate(cost: PassCost, factors: tuple[float, float], *, num_passes: int) -> None:
    """Passes of two halves that take turns, of 12 and of 10 requests, which take so many times what they should."""
    for number in range(num_passes):
        is_second = number % 2
        num_tokens = (50, 40)[is_second]
        cost.note(
            num_requests=(12, 10)[is_second],
            num_tokens=num_tokens,
            num_prefill_tokens=0,
            num_kv_tokens=0,
            taken_s=factors[is_second] * (0.01 + 1e-4 * num_tokens),
        )


def test_what_has_long_been_known_is_corrected_soon() -> None:
    cost = PassCost()
    alternate(cost, (1.0, 1.0), num_passes=400)
    alternate(cost, (1.5, 1.5), num_passes=100)
    assert curve(cost, 12, 0).seconds(50) == pytest.approx(0.0225, rel=0.1)
    assert curve(cost, 10, 0).seconds(40) == pytest.approx(0.021, rel=0.1)


def test_of_passes_like_many_others_one_in_four_is_learnt_from_of_either_half(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cost = PassCost()
    alternate(cost, (1.0, 1.0), num_passes=400)
    learnt: list[float] = []
    note = OnlineFit.note

    def spy(fit: OnlineFit, features: Sequence[float], value: float, *, num_steps: int) -> float:
        learnt.append(features[1])
        return note(fit, features, value, num_steps=num_steps)

    monkeypatch.setattr(OnlineFit, "note", spy)
    alternate(cost, (1.0, 1.0), num_passes=400)
    assert len(learnt) == pytest.approx(100, abs=2)
    assert learnt.count(12) == pytest.approx(50, abs=10)


def test_a_rare_kind_of_pass_is_always_learnt_from() -> None:
    cost = PassCost()
    alternate(cost, (1.0, 1.0), num_passes=400)
    for _ in range(12):
        alternate(cost, (1.0, 1.0), num_passes=16)
        before = curve(cost, 300, 0)
        cost.note(num_requests=300, num_tokens=300, num_prefill_tokens=0, num_kv_tokens=0, taken_s=0.1)
        assert curve(cost, 300, 0) != before


@pytest.mark.parametrize("num_requests", [2, 16, 48])
def test_what_features_cost_is_told_apart_from_the_rest_of_a_pass(num_requests: int) -> None:
    def pass_s(num_tokens: int, with_features: bool) -> float:
        return 0.01 + 2e-4 * num_tokens + with_features * (0.001 + 3e-5 * num_tokens)

    cost, random = PassCost(), Random(1)
    for _ in range(1500):
        num_tokens, with_features = random.randint(1, 64), random.random() < 0.5
        cost.note(
            num_requests=num_tokens,
            num_tokens=num_tokens,
            num_prefill_tokens=0,
            num_kv_tokens=0,
            taken_s=pass_s(num_tokens, with_features) * random.lognormvariate(0.0, 0.02),
            with_features=with_features,
        )
    for with_features in (False, True):
        known = cost.curve(
            num_requests=num_requests, num_prefill_tokens=0, num_kv_tokens=0, with_features=with_features
        )
        expected_s = pass_s(num_requests, with_features)
        assert known.seconds(num_requests) == pytest.approx(expected_s, rel=0.03)


def test_features_never_seem_to_make_passes_shorter() -> None:
    cost = PassCost()
    for number in range(200):
        with_features = number % 2 == 0
        cost.note(
            num_requests=8,
            num_tokens=8,
            num_prefill_tokens=0,
            num_kv_tokens=0,
            taken_s=0.01 if with_features else 0.011,
            with_features=with_features,
        )
    with_them, without = [
        cost.curve(num_requests=8, num_prefill_tokens=0, num_kv_tokens=0, with_features=is_on).seconds(8)
        for is_on in (True, False)
    ]
    assert with_them >= without
