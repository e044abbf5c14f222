from __future__ import annotations

from pathlib import Path

import pytest

from dspine_cluster.errors import ConfigError
from dspine_cluster.sim.scenario import read_scenario

SHIPPED = sorted((Path(__file__).parents[2] / "scenarios").glob("*.yaml"))
MINIMAL = "{name: x, duration_s: 100, load: {conversations_per_s: 1}, kinds: [{name: a, acceptance: 0.5}]"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_scenarios_parse_and_say_what_they_are_for(path: Path) -> None:
    assert read_scenario(path).name == path.stem
    assert path.read_text().startswith("# ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MINIMAL + ", bogus: 1}", "bogus"),
        (MINIMAL + ", autoscaling: {verifiers: {bogus: 1}}}", "autoscaling.verifiers.bogus"),
        (MINIMAL + ", replicas: {limits: {bogus: 1}}}", "replicas.limits.bogus"),
        (MINIMAL + ", costs: {bogus: 1}}", "costs.bogus"),
        (MINIMAL + ", placement: {bogus: 1}}", "placement.bogus"),
        (MINIMAL + ", own: {bogus: [1]}}", "own.bogus"),
        (MINIMAL + ", replicas: {verify: much}}", "verify must be"),
        (MINIMAL + ", warm_up_s: 100}", "warm_up_s"),
        (MINIMAL + ", held_out_seeds: [1]}", "held_out_seeds"),
        (MINIMAL + ", costs: {}, gpu_round: x.json}", "either costs or gpu_round"),
        (MINIMAL + ", gpu_round: x.json}", "no report of gpu_round"),
        ("{name: x}", "load"),
        ("[1]", "mapping"),
        ("{", "cannot read"),
    ],
)
def test_what_is_wrong_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_scenario(path)
