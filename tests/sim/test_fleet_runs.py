from __future__ import annotations

from typing import Any

from dspine_cluster.sim.fleet_runs import JUDGED, TOLD, fidelity_differences, run_fleet
from dspine_cluster.sim.scaling_policies import FixedNumbers


def test_rates_agree_with_rounds_within_five_percent(make_scenario: Any) -> None:
    scenario = make_scenario(duration_s=50.0, load={"conversations_per_s": 1.5})
    differences = fidelity_differences(scenario, lambda: FixedNumbers(3, 0.34), 1)
    assert max(abs(differences[name]) for name in JUDGED) < 0.05, differences


def test_a_run_is_repeatable(make_scenario: Any) -> None:
    scenario = make_scenario(duration_s=30.0)
    one, other = (run_fleet(scenario, FixedNumbers(2, 0.5), "fluid", 1) for _ in range(2))
    assert one.ended_s == other.ended_s


def test_runs_in_which_nobody_comes_do_not_differ(make_scenario: Any) -> None:
    scenario = make_scenario(duration_s=20.0, load={"conversations_per_s": 1e-9})
    differences = fidelity_differences(scenario, lambda: FixedNumbers(1, 1.0), 1)
    assert differences == dict.fromkeys((*JUDGED, *TOLD), 0.0)
