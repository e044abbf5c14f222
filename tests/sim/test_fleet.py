from __future__ import annotations

from typing import Any

import pytest

from dspine_cluster.core.autoscaling_config import AutoscalingConfig
from dspine_cluster.sim.fleet_report import FleetReport
from dspine_cluster.sim.fleet_runs import FIDELITIES, Fidelity, run_fleet
from dspine_cluster.sim.scaling_policies import ByAcceptance, FixedNumbers
from dspine_cluster.sim.scenario import Scenario
from dspine_cluster.sim.workload import make_talks

both = pytest.mark.parametrize("fidelity", FIDELITIES)


def check(scenario: Scenario, report: FleetReport) -> None:
    """Everything that came is served to its end, once."""
    uids = [(work.talk.number, work.turn) for work in report.done]
    assert len(set(uids)) == len(uids)
    assert {number for number, _ in uids} == {talk.number for talk in make_talks(scenario, 1)}
    for work, ended_s in zip(report.done, report.ended_s, strict=True):
        assert work.first_s is not None
        assert work.arrived_s < work.first_s <= ended_s + 0.2
        assert 0 <= work.cached_tokens < work.prompt_tokens


def mean_answer_s(report: FleetReport) -> float:
    """From first to last tokens."""
    first_s = sum(work.first_s or 0.0 for work in report.done)
    return (sum(report.ended_s) - first_s) / len(report.done)


@both
def test_a_fleet_that_loses_verifiers_serves_all_to_their_end(make_scenario: Any, fidelity: Fidelity) -> None:
    scenario = make_scenario(duration_s=40.0, losses=[{"at_s": 15, "verifiers": 1}])
    report = run_fleet(scenario, FixedNumbers(2, 0.5), fidelity, 1)
    check(scenario, report)
    assert any(work.num_produced for work in report.done)
    assert min(verifiers for _, verifiers, _, _ in report.counts) == 1


def test_gpu_time_is_that_of_all_replicas_from_their_start_on(make_scenario: Any) -> None:
    report = run_fleet(make_scenario(), FixedNumbers(2, 0.5), "fluid", 1)
    assert report.gpu_s == pytest.approx(3 * 90.0)


def test_replicas_come_after_their_start_time_and_go_when_they_are_empty(make_scenario: Any) -> None:
    scenario = make_scenario(
        duration_s=330.0, load={"conversations_per_s": 3, "amplitude": 1, "period_s": 300}
    )
    scenario_limits = AutoscalingConfig(inter_token_s=0.006, smoothing_s=6.0)
    report = run_fleet(scenario, ByAcceptance(scenario_limits), "fluid", 1)
    check(scenario, report)
    numbers = [verifiers for _, verifiers, _, _ in report.counts]
    assert max(numbers[20:]) > min(numbers[:30])
    assert numbers[-1] < max(numbers)
    for event in report.scale_events:
        assert "tokens/s" in event.reason


def test_slow_verifiers_are_seen_in_what_comes_of_them(make_scenario: Any) -> None:
    slow = {"initial_verifiers": 2, "slow_ratio": 1.0, "slow_factor": 2.0}
    usual, slower = (
        mean_answer_s(run_fleet(make_scenario(replicas=replicas), FixedNumbers(2, 0.5), "fluid", 1))
        for replicas in ({"initial_verifiers": 2}, slow)
    )
    assert 1.5 * usual < slower < 3 * usual


def test_without_drafters_answers_take_longer(make_scenario: Any) -> None:
    drafted, plain = (run_fleet(make_scenario(), FixedNumbers(2, r), "fluid", 1) for r in (0.5, 0.0))
    assert mean_answer_s(plain) > 2 * mean_answer_s(drafted)
