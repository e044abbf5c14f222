"""One run of a scenario under one policy."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from random import Random
from typing import Literal

from dspine_cluster.sim.fleet import MakeReplica, SimulatedFleet
from dspine_cluster.sim.fleet_report import FleetReport
from dspine_cluster.sim.fluid import FluidVerifier
from dspine_cluster.sim.replica import Replica
from dspine_cluster.sim.round_replica import RoundVerifier
from dspine_cluster.sim.round_table import RoundTable
from dspine_cluster.sim.scaling_policies import ScalingPolicy
from dspine_cluster.sim.scenario import Scenario
from dspine_cluster.sim.scoring import score
from dspine_cluster.sim.simulation import Simulation
from dspine_cluster.sim.workload import make_talks

Fidelity = Literal["round", "fluid"]
JUDGED = (
    "objective_met_ratio",
    "gpu_hours",
    "goodput_tokens_per_s",
    "cached_token_ratio",
    "ttft_p50_s",
    "inter_token_p50_s",
)
"""Figures in which fluid runs are to agree with those round by round."""
TOLD = ("ttft_p99_s", "inter_token_p99_s")
"""Figures that one request in a hundred decides: they differ between two seeds, too."""
FIDELITIES: tuple[Fidelity, Fidelity] = ("fluid", "round")


def run_fleet(
    scenario: Scenario, policy: ScalingPolicy, fidelity: Fidelity, seed: int, table: RoundTable | None = None
) -> FleetReport:
    """Serve the scenario's conversations of a seed. A `table` that is given is used again."""
    table = table or make_table(scenario)
    fleet = SimulatedFleet(
        scenario,
        policy,
        _maker(scenario, table, fidelity, seed),
        seed=seed,
        by_load=fidelity == "fluid",
    )
    return fleet.run(make_talks(scenario, seed))


def fidelity_differences(
    scenario: Scenario, policy: Callable[[], ScalingPolicy], seed: int
) -> dict[str, float]:
    """How far fluid runs are from those round by round in what is judged and what is only told, relative to the latter;
    infinite where only these have none."""
    table = make_table(scenario)
    fluid, rounds = (
        score(scenario, run_fleet(scenario, policy(), fidelity, seed, table)) for fidelity in FIDELITIES
    )
    return {name: _difference(getattr(fluid, name), getattr(rounds, name)) for name in (*JUDGED, *TOLD)}


def _difference(value: float, reference: float) -> float:
    if reference:
        return value / reference - 1
    return inf if value else 0.0


def make_table(scenario: Scenario) -> RoundTable:
    """The rounds of a scenario's replicas."""
    config = scenario.replicas
    return RoundTable(scenario.costs, [k.acceptance for k in scenario.kinds], config.verify, config.limits)


def _maker(scenario: Scenario, table: RoundTable, fidelity: Fidelity, seed: int) -> MakeReplica:
    limits, costs, num_kinds = scenario.replicas.limits, scenario.costs, len(scenario.kinds)

    def make_fluid(name: str, simulation: Simulation, slow_factor: float) -> Replica:
        return FluidVerifier(
            name, simulation, table, costs, limits, num_kinds=num_kinds, slow_factor=slow_factor
        )

    def make_round(name: str, simulation: Simulation, slow_factor: float) -> Replica:
        return RoundVerifier(
            name,
            simulation,
            table,
            costs,
            limits,
            acceptances=[kind.acceptance for kind in scenario.kinds],
            verify=scenario.replicas.verify,
            random=Random(f"{seed}/{name}"),
            slow_factor=slow_factor,
        )

    return make_fluid if fidelity == "fluid" else make_round
