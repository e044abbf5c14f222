"""The real autoscaling beside its rivals at their best parameters, all judged by seeds that nothing was chosen by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

from dspine_cluster.core.autoscaling_config import AutoscalingConfig
from dspine_cluster.sim.clairvoyant import Clairvoyant, known_load
from dspine_cluster.sim.fleet_report import FleetReport
from dspine_cluster.sim.fleet_runs import Fidelity, fidelity_differences, make_table, run_fleet
from dspine_cluster.sim.scaling_policies import (
    ByAcceptance,
    FixedNumbers,
    ScalingPolicy,
    ServeDefault,
    ServeSettings,
)
from dspine_cluster.sim.scenario import Scenario
from dspine_cluster.sim.scoring import Score, pool, score

MAX_GPU_HOURS_RATIO = 0.9
"""Of the cheapest rival's that meets the objective, which the real autoscaling is to stay within."""
MAX_DIFFERENCE = 0.05
"""Of what fluid runs tell, from what single rounds do."""
CLAIRVOYANT = "clairvoyant"
"""The policy that knows who comes: no rival, but a bound."""
_CLAIRVOYANT_CHOICES = {
    "utilisation": (0.75, 0.65, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0),
    "drafters_per_verifier": (0.15,),
}
Values = dict[str, float]
Make = Callable[[Values, int], ScalingPolicy]
"""(parameters, seed)"""


@dataclass(frozen=True, slots=True)
class Judged:
    """A policy, and how it did on the held-out seeds."""

    name: str
    parameters: Values
    score: Score
    report: FleetReport
    """Of the first of them."""


def differences(scenario: Scenario) -> dict[str, float]:
    """How far fluid figures are from those of single rounds, with the real autoscaling on the first held-out seed."""
    config = own_config(scenario)
    return fidelity_differences(scenario, lambda: ByAcceptance(config), scenario.held_out_seeds[0])


def compare(
    scenario: Scenario,
    fidelity: Fidelity,
    progress: Callable[[str], None],
    *,
    is_alone: bool = False,
    has_bound: bool = False,
) -> list[Judged]:
    """The real autoscaling first; with `is_alone` no rivals and the settings as they are, with `has_bound` the policy
    that knows who comes last. Parameters are chosen by fluid runs, whatever the fidelity of the rest."""
    table = make_table(scenario)

    def run(make: Make, values: Values, fidelity: Fidelity, seed: int) -> FleetReport:
        return run_fleet(scenario, make(values, seed), fidelity, seed, table)

    def judge(name: str, make: Make, values: Values) -> Judged:
        progress(f"{name}: held-out seeds")
        reports = [run(make, values, fidelity, seed) for seed in scenario.held_out_seeds]
        return Judged(name, values, pool([score(scenario, report) for report in reports]), reports[0])

    def best(name: str, make: Make, choices: Mapping[str, Sequence[float]]) -> Values:
        def cost(values: Values) -> tuple[bool, float]:
            progress(f"{name}: {', '.join(f'{n} {v:g}' for n, v in values.items())}")
            scores = [score(scenario, run(make, values, "fluid", seed)) for seed in scenario.sweep_seeds]
            # Half of the misses that are allowed: the other half is for what other seeds bring.
            return pool(scores).key((1 + scenario.objective.met_ratio) / 2)

        return sweep(choices, cost)

    @cache
    def load(seed: int) -> list[float]:
        return known_load(scenario, seed, table)

    def clairvoyant(values: Values, seed: int) -> ScalingPolicy:
        return Clairvoyant(load(seed), scenario.losses, scenario.replicas.verifier_start_s, **values)

    judged = [judge("dspine", lambda *_: ByAcceptance(own_config(scenario)), {})] if is_alone else []
    policies: list[tuple[str, Make, Mapping[str, Sequence[float]]]] = []
    if not is_alone:
        policies += [
            ("dspine", lambda values, _: ByAcceptance(own_config(scenario, values)), asdict(scenario.own)),
            (
                "serve",
                lambda values, _: ServeDefault(_serve_settings(scenario, values)),
                asdict(scenario.serve_rival),
            ),
            ("fixed", _fixed, asdict(scenario.fixed_rival)),
        ]
    if has_bound:
        policies.append((CLAIRVOYANT, clairvoyant, _CLAIRVOYANT_CHOICES))
    return judged + [judge(name, make, best(name, make, choices)) for name, make, choices in policies]


def own_config(scenario: Scenario, values: Values | None = None) -> AutoscalingConfig:
    """The scenario's settings, for its objective and its replicas' start; `values` are those of `OwnChoices`."""
    config = replace(
        scenario.autoscaling,
        inter_token_s=scenario.objective.inter_token_s,
        lead_s=scenario.replicas.verifier_start_s,
    )
    if values is None:
        return config
    hold_s = values["down_hold_s"]
    return replace(
        config,
        verifiers=replace(config.verifiers, down_hold_s=hold_s),
        drafters=replace(config.drafters, down_hold_s=hold_s),
        verifier_utilisation=values["verifier_utilisation"],
        drafter_busy_ratio=values["drafter_busy_ratio"],
        smoothing_s=values["smoothing_s"],
    )


def sweep(choices: Mapping[str, Sequence[float]], cost: Callable[[Values], tuple[bool, float]]) -> Values:
    """The values of least cost that are found by trying those of one parameter after the other, until nothing gets
    better. The first of each are where it starts."""
    names = list(choices)

    @cache
    def cost_of(values: tuple[float, ...]) -> tuple[bool, float]:
        return cost(dict(zip(names, values, strict=True)))

    at = tuple(values[0] for values in choices.values())
    while True:
        before = at
        for i, name in enumerate(names):
            at = min(((*at[:i], v, *at[i + 1 :]) for v in choices[name]), key=cost_of)
        if at == before:
            return dict(zip(names, at, strict=True))


def verdict(scenario: Scenario, judged: Sequence[Judged]) -> str:
    """Whether the real autoscaling does what it is for, in words with figures."""
    ours, rivals = judged[0].score, [rival for rival in judged[1:] if rival.name != CLAIRVOYANT]
    met = scenario.objective.met_ratio
    good = [rival for rival in rivals if rival.score.objective_met_ratio >= met]
    head = f"dspine meets the objective for {100 * ours.objective_met_ratio:.2f} % of requests"
    if ours.objective_met_ratio < met:
        head = f"NOT MET: {head}, less than {100 * met:g} %"
    if not rivals:
        return f"{head}, at {ours.gpu_hours:.2f} GPU hours"
    if not good:
        return f"{head}, at {ours.gpu_hours:.2f} GPU hours; no rival meets it for {100 * met:g} %"
    cheapest = min(good, key=lambda rival: rival.score.gpu_hours)
    ratio = ours.gpu_hours / cheapest.score.gpu_hours
    text = (
        f"{head}, at {ratio:.2f} times the GPU hours of the cheapest rival that does, {cheapest.name} with "
        f"{', '.join(f'{name} {value:g}' for name, value in cheapest.parameters.items())} "
        f"({ours.gpu_hours:.2f} against {cheapest.score.gpu_hours:.2f})"
    )
    if ratio > MAX_GPU_HOURS_RATIO:
        text += f"; NOT SHOWN: at most {MAX_GPU_HOURS_RATIO:g} times"
    return text


def as_json(scenario: Scenario, fidelity: Fidelity, judged: Sequence[Judged]) -> dict[str, Any]:
    """What `dspine simulate --json` writes."""
    policies = []
    for item in judged:
        row: dict[str, Any] = {"name": item.name, "parameters": item.parameters} | asdict(item.score)
        row["decisions"] = [asdict(event) for event in item.report.scale_events]
        policies.append(row)
    return {
        "scenario": scenario.name,
        "fidelity": fidelity,
        "sweep_seeds": list(scenario.sweep_seeds),
        "held_out_seeds": list(scenario.held_out_seeds),
        "policies": policies,
        "verdict": verdict(scenario, judged),
    }


def _fixed(values: Values, seed: int) -> ScalingPolicy:
    return FixedNumbers(int(values["verifiers"]), values["drafters_per_verifier"])


def _serve_settings(scenario: Scenario, values: Values) -> ServeSettings:
    limits = scenario.autoscaling.verifiers
    return ServeSettings(min_replicas=max(1, limits.min_replicas), max_replicas=limits.max_replicas, **values)
