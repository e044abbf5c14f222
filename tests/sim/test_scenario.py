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


NO_KINDS = "{name: x, duration_s: 100, load: {conversations_per_s: 1}, kinds: "


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
        (MINIMAL + ", duration_s: .inf}", "duration_s"),
        (MINIMAL + ", load: {conversations_per_s: .inf}}", "conversations_per_s"),
        (MINIMAL + ", load: {conversations_per_s: 1, period_s: .nan}}", "period_s"),
        (MINIMAL + ", load: {conversations_per_s: 1, bursts: [{at_s: 1, for_s: 1, factor: -2}]}}", "factor"),
        (NO_KINDS + "[{name: a, acceptance: 0.5, median_output_tokens: 0}]}", "median_output_tokens"),
        (NO_KINDS + "[{name: a, acceptance: 0.5, shares: [[0, 1], [9, 0]]}]}", "shares must be positive"),
        (NO_KINDS + "[{name: a, acceptance: 0.5, shares: [[9, 1], [0, 1]]}]}", "order of their times"),
        (NO_KINDS + "[{name: a, acceptance: 0.5, shares: [[0, -1]]}]}", "shares"),
        (MINIMAL + ", conversations: {mean_turns: 0}}", "mean_turns"),
        (MINIMAL + ", conversations: {median_gap_s: 0}}", "median_gap_s"),
        (MINIMAL + ", conversations: {num_system_prompts: 0}}", "num_system_prompts"),
        (MINIMAL + ", conversations: {median_user_tokens: -3}}", "median_user_tokens"),
        (MINIMAL + ", conversations: {spread: .nan}}", "spread"),
        (MINIMAL + ", replicas: {initial_verifiers: -1}}", "initial_verifiers"),
        (MINIMAL + ", replicas: {drafter_start_s: -1}}", "drafter_start_s"),
        (MINIMAL + ", replicas: {verifier_gpus: -1}}", "verifier_gpus"),
        (MINIMAL + ", replicas: {slow_factor: 0}}", "slow_factor"),
        (MINIMAL + ", replicas: {limits: {max_running_requests: 0}}}", "max_running_requests"),
        (MINIMAL + ", replicas: {limits: {max_verify_length: 16}}}", "max_verify_length"),
        (MINIMAL + ", losses: [{at_s: 10, verifiers: -1}]}", "verifiers must"),
        (MINIMAL + ", losses: [{at_s: -10, verifiers: 1}]}", "at_s"),
        (MINIMAL + ", objective: {met_ratio: 2}}", "met_ratio"),
        (MINIMAL + ", objective: {ttft_s: 0}}", "ttft_s"),
        (MINIMAL + ", costs: {token_s: 0}}", "token_s"),
        (MINIMAL + ", costs: {step_s: -1}}", "step times"),
        (MINIMAL + ", sweep_seeds: []}", "sweep_seeds"),
        (MINIMAL + ", held_out_seeds: []}", "held_out_seeds"),
        (MINIMAL + ", own: {down_hold_s: []}}", "down_hold_s"),
        (MINIMAL + ", serve_rival: {target_ongoing_requests: [0]}}", "target_ongoing_requests"),
        (MINIMAL + ", fixed_rival: {verifiers: [0]}}", "verifiers must"),
        (MINIMAL + ", fixed_rival: {drafters_per_verifier: [-1]}}", "drafters_per_verifier"),
        (MINIMAL + ", day: 2026-99-99}", "cannot read"),
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
