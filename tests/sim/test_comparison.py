from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dspine_cluster.sim.comparison import Judged, as_json, compare, own_config, sweep, verdict
from dspine_cluster.sim.report import plot_comparison, print_comparison
from dspine_cluster.sim.scenario import FixedRival, OwnChoices, Scenario, ServeRival


@pytest.fixture
def scenario(make_scenario: Any) -> Scenario:
    base: Scenario = make_scenario(duration_s=20.0)
    return replace(
        base,
        own=OwnChoices((0.9,), (0.6,), (20,), (12,)),
        serve_rival=ServeRival((16, 8), (0.5,), (60,), (10,)),
        fixed_rival=FixedRival((2, 1), (0.5,)),
    )


def test_the_real_autoscaling_plans_for_the_scenarios_objective_and_start_up_time(scenario: Scenario) -> None:
    config = own_config(scenario)
    assert (config.inter_token_s, config.lead_s) == (0.012, 20.0)
    chosen = own_config(
        scenario,
        {"verifier_utilisation": 0.5, "drafter_busy_ratio": 0.4, "down_hold_s": 7.0, "smoothing_s": 9.0},
    )
    assert (chosen.verifier_utilisation, chosen.drafter_busy_ratio, chosen.inter_token_s) == (0.5, 0.4, 0.012)
    assert chosen.smoothing_s == 9.0
    assert chosen.verifiers.down_hold_s == chosen.drafters.down_hold_s == 7.0


def test_a_sweep_finds_the_least_of_each_parameter_in_turn() -> None:
    tried = []

    def cost(values: dict[str, float]) -> tuple[bool, float]:
        tried.append(values)
        return False, (values["a"] - 3) ** 2 + (values["b"] - 1) ** 2

    assert sweep({"a": (1, 2, 3), "b": (2, 1)}, cost) == {"a": 3, "b": 1}
    assert len(tried) == len({tuple(v.values()) for v in tried})


def test_all_are_judged_by_seeds_that_nothing_was_chosen_by(scenario: Scenario, tmp_path: Path) -> None:
    steps: list[str] = []
    judged = compare(scenario, "fluid", steps.append, has_bound=True)
    assert [item.name for item in judged] == ["dspine", "serve", "fixed", "clairvoyant"]
    assert judged[2].parameters == {"verifiers": 1, "drafters_per_verifier": 0.5}
    assert "serve: held-out seeds" in steps
    written = json.loads(json.dumps(as_json(scenario, "fluid", judged)))
    for row in written["policies"]:
        for name in ("name", "objective_met_ratio", "gpu_hours", "goodput_tokens_per_s", "scale_events"):
            assert name in row
    text = StringIO()
    print_comparison(Console(file=text, width=400), scenario, judged)
    assert written["verdict"] in text.getvalue()
    plot_comparison(scenario, judged, tmp_path / "out.png")
    assert (tmp_path / "out.png").stat().st_size > 10_000


def test_the_verdict_says_what_does_not_hold(scenario: Scenario) -> None:
    (own,) = compare(scenario, "fluid", lambda _: None, is_alone=True)

    def judged(name: str, met: float, hours: float) -> Judged:
        return replace(own, name=name, score=replace(own.score, objective_met_ratio=met, gpu_hours=hours))

    good, poor = judged("dspine", 0.995, 1.0), judged("dspine", 0.95, 1.0)
    rivals = [judged("serve", 0.999, 1.5), judged("fixed", 0.9, 0.5)]
    assert "0.67 times the GPU hours of the cheapest rival that does, serve" in verdict(
        scenario, [good, *rivals]
    )
    assert "NOT SHOWN" not in verdict(scenario, [good, *rivals])
    assert verdict(scenario, [poor, *rivals]).startswith("NOT MET")
    assert "NOT SHOWN" in verdict(scenario, [good, judged("serve", 1.0, 1.1)])
    assert "no rival meets it" in verdict(scenario, [good, judged("serve", 0.9, 1.1)])
    cheaper = judged("clairvoyant", 1.0, 0.5)
    assert verdict(scenario, [good, *rivals, cheaper]) == verdict(scenario, [good, *rivals])
