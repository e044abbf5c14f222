from __future__ import annotations

from random import Random

import pytest

from dspine_cluster.core.capacity_estimate import rates_of
from dspine_cluster.core.cost_curve import CostCurve, CostShape
from dspine_cluster.core.dynamic_verify_length import DynamicVerifyLength
from dspine_cluster.core.survival import cells_of
from dspine_cluster.core.verify_length import Blocks, FixedVerifyLength, Outcomes, PassLoad

FLAT = CostCurve(CostShape((0, 64), (0.02, 0.02), (0.0, 0.001)))
"""20 ms up to 64 tokens, one more for each after that."""
SIZES = (1, 4, 16, 64)


def survivals(rate: float) -> list[float]:
    return [rate**j for j in range(1, 16)]


def test_plain_rates_are_those_of_the_costs() -> None:
    assert [rates.plain for rates in rates_of((1, 64), [], lambda *_: FLAT, lambda _: 0.0)] == [50.0, 3200.0]


def test_plain_rates_are_those_of_passes_without_features() -> None:
    dear = CostCurve(CostShape((0,), (0.03,), (0.0,)))
    [rates] = rates_of((1,), [[survivals(0.0)]], lambda _, has: dear if has else FLAT, lambda _: 0.01)
    assert rates.plain == 50.0
    assert rates.drafted == pytest.approx(25.0)


def test_nothing_is_said_of_drafts_before_one_has_come() -> None:
    assert all(
        rates.drafted is None for rates in rates_of(SIZES, [[survivals(0.8)]], lambda *_: FLAT, lambda _: 0.0)
    )


def test_a_small_batch_commits_its_whole_acceptance_length() -> None:
    [rates] = rates_of((1,), [[survivals(0.8)]], lambda *_: FLAT, lambda _: 0.005)
    assert rates.drafted == pytest.approx((1 + sum(survivals(0.8))) / 0.025)


def test_lower_acceptance_gives_less_wherever_drafts_are_verified() -> None:
    high, low = (
        [
            rates.drafted or 0.0
            for rates in rates_of(SIZES[:3], [[survivals(rate)]], lambda *_: FLAT, lambda _: 0.005)
        ]
        for rate in (0.85, 0.5)
    )
    assert all(more > less for more, less in zip(high, low, strict=True))


def test_a_batch_of_two_kinds_gives_the_mean_of_both() -> None:
    def drafted(*promises: float) -> float:
        found = rates_of((2,), [[survivals(p)] for p in promises], lambda *_: FLAT, lambda _: 0.005)
        return found[0].drafted or 0.0

    assert drafted(0.8, 0.4) == pytest.approx((drafted(0.8, 0.8) + drafted(0.4, 0.4)) / 2, rel=0.05)


def test_a_policy_that_learns_no_costs_estimates_nothing() -> None:
    assert FixedVerifyLength(15).estimate(SIZES) is None


def test_a_policy_that_has_learnt_tells_what_larger_batches_give() -> None:
    policy = DynamicVerifyLength(Random(0))
    assert policy.estimate(SIZES) is None
    for _ in range(200):
        policy.choose_drafts([1, 2])
        policy.note_drafts(2, 0.005)
        blocks = Blocks([1, 2], [15, 15], [cells_of([0.8] * 15)] * 2, [True, True])
        lengths = policy.choose(blocks)
        outcomes = Outcomes([1, 2], lengths, [min(length, 5) for length in lengths])
        policy.note_pass(outcomes, PassLoad(), 0.02 + 0.0001 * (2 + sum(lengths)))
    estimate = policy.estimate(SIZES)
    assert estimate is not None
    assert all(rates.drafted is not None and rates.drafted > rates.plain for rates in estimate.rates[:2])
    assert estimate.rates[-1].plain > 4 * estimate.rates[0].plain
