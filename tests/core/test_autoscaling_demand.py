from __future__ import annotations

from dataclasses import replace
from math import isfinite

import pytest

from dspine_cluster.core.autoscaling_config import AutoscalingConfig
from dspine_cluster.core.autoscaling_demand import Demand, update_demand
from dspine_cluster.core.autoscaling_stats import RoundCurve, VerifierStats

CONFIG = AutoscalingConfig()
BASE = VerifierStats("v", 0.0, RoundCurve((1, 2), (0.02, 0.03)), max_requests=64)


def follow(demand: Demand, rates: list[float], growth: float = 0.0) -> Demand:
    left = demand.outstanding_tokens or 0.0
    for i, rate in enumerate(rates):
        left += growth
        stats = replace(BASE, committed_tokens_per_s=rate, running_tokens=left, prefill_tokens_per_s=5 * rate)
        demand = update_demand(demand, [stats], 1.0, demand.seen_at_s + (i > 0), CONFIG)
    return demand


def test_steady_work_is_its_own_demand() -> None:
    demand = follow(Demand(), [1000.0] * 60)
    assert demand.level == pytest.approx(1000)
    assert demand.ahead(60) == pytest.approx(1000)
    assert demand.prefill_ratio == pytest.approx(5)


def test_what_piles_up_is_asked_for_as_well() -> None:
    assert follow(Demand(), [1000.0] * 200, growth=500.0).level == pytest.approx(1500, rel=0.05)


def test_a_rise_is_seen_ahead_and_a_fall_is_not_relied_on() -> None:
    rising = follow(Demand(), [1000.0 + 10 * i for i in range(300)])
    assert rising.ahead(30) == pytest.approx(3990 + 300, rel=0.03)
    falling = follow(Demand(), [4000.0 - 10 * i for i in range(300)])
    assert falling.ahead(30) == falling.level


def test_part_of_the_fleet_stands_for_all() -> None:
    stats = replace(BASE, committed_tokens_per_s=300.0)
    assert update_demand(Demand(), [stats], 0.5, 0.0, CONFIG).level == 600


def test_answers_are_generated_after_they_are_asked_for() -> None:
    rising, falling = (Demand(level=1000, trend=trend, lag_s=6) for trend in (10, -10))
    assert rising.ahead(30) == 1000 + 30 * 10 - 6 * 10
    assert falling.ahead(30) == 1000 + 6 * 10
    assert Demand(level=1000, trend=10, lag_s=600).ahead(30) == 1000 + 30 * 10 - 10 * 10


def test_the_lag_is_what_runs_over_what_is_generated() -> None:
    demand = Demand()
    for second in range(400):
        stats = replace(BASE, committed_tokens_per_s=1000.0, running_tokens=8000.0)
        demand = update_demand(demand, [stats], 1.0, float(second), CONFIG)
    assert demand.lag_s == pytest.approx(8, rel=0.01)


def test_next_to_nothing_generated_gives_finite_ratios() -> None:
    stats = replace(BASE, committed_tokens_per_s=5e-324, prefill_tokens_per_s=1e12, running_tokens=1e12)
    demand = update_demand(update_demand(Demand(), [stats], 1.0, 0.0, CONFIG), [stats], 1.0, 1.0, CONFIG)
    assert isfinite(demand.prefill_ratio)
    assert isfinite(demand.lag_s)
