from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dspine_cluster.sim.fleet_runs import run_fleet
from dspine_cluster.sim.scaling_policies import FixedNumbers
from dspine_cluster.sim.scoring import pool, score


def test_a_stricter_objective_is_met_less_often(make_scenario: Any) -> None:
    scenario = make_scenario(duration_s=40.0)
    report = run_fleet(scenario, FixedNumbers(2, 0.5), "fluid", 1)
    easy = score(scenario, report)
    strict = score(replace(scenario, objective=replace(scenario.objective, ttft_s=easy.ttft_p50_s)), report)
    assert easy.objective_met_ratio > 0.99
    assert strict.objective_met_ratio == pytest.approx(0.5, abs=0.05)
    assert strict.goodput_tokens_per_s < easy.goodput_tokens_per_s
    assert easy.num_requests == sum(work.arrived_s >= 10.0 for work in report.done)


def test_meeting_the_objective_comes_before_cost(make_scenario: Any) -> None:
    scenario = make_scenario(duration_s=20.0)
    base = score(scenario, run_fleet(scenario, FixedNumbers(2, 0.5), "fluid", 1))
    dear = replace(base, objective_met_ratio=0.995, gpu_hours=9.0)
    cheap = replace(base, objective_met_ratio=0.985, gpu_hours=1.0)
    assert dear.key(0.99) < cheap.key(0.99)
    assert cheap.key(0.98) < dear.key(0.98)
    assert pool([dear, cheap]).gpu_hours == 5.0
