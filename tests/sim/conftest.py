from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dspine_cluster.config import parse_config
from dspine_cluster.sim.scenario import Scenario

MakeScenario = Callable[..., Scenario]


@pytest.fixture
def make_scenario() -> MakeScenario:
    """A small fleet; keyword arguments replace keys."""

    def make(**changes: Any) -> Scenario:
        values: dict[str, Any] = {
            "name": "small",
            "duration_s": 90.0,
            "warm_up_s": 10.0,
            "load": {"conversations_per_s": 1.0},
            "objective": {"ttft_s": 1.5, "inter_token_s": 0.012},
            "kinds": [{"name": "chat", "acceptance": 0.75, "median_output_tokens": 300}],
            "replicas": {"initial_verifiers": 2, "verifier_start_s": 20.0, "drafter_start_s": 10.0},
        }
        return parse_config(Scenario, values | changes)

    return make
