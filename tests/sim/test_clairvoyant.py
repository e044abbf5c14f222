from __future__ import annotations

from typing import Any

import pytest

from dspine_cluster.core.autoscaling_stats import Observation
from dspine_cluster.sim.clairvoyant import Clairvoyant, known_load
from dspine_cluster.sim.fleet_runs import make_table
from dspine_cluster.sim.scenario import Loss


def numbers(load: list[float], *losses: Loss) -> list[int]:
    policy = Clairvoyant(load, losses, 4.0, utilisation=0.5, drafters_per_verifier=0.5)
    return [policy.decide(Observation(float(at), 1, 1, (), ()), 0).verifiers for at in range(len(load))]


def test_verifiers_start_before_a_rise_and_go_with_a_fall() -> None:
    assert numbers([1.0] * 10 + [3.0] * 5 + [1.0] * 5) == [2] * 6 + [6] * 9 + [2] * 5


def test_what_will_be_lost_is_replaced_before() -> None:
    assert numbers([1.0] * 12, Loss(8.0, 1)) == [2] * 3 + [3] * 5 + [2] * 4


def test_known_load_grows_with_who_comes(make_scenario: Any) -> None:
    loads = []
    for rate in (1.0, 2.0):
        scenario = make_scenario(
            duration_s=60.0, load={"conversations_per_s": rate}, fixed_rival={"verifiers": [3]}
        )
        load = known_load(scenario, 1, make_table(scenario))
        assert len(load) == 60
        loads.append(sum(load[20:]) / 40)
    assert loads[1] == pytest.approx(2 * loads[0], rel=0.3)
