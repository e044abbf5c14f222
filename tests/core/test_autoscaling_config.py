from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from dspine_cluster.core.autoscaling_config import AutoscalingConfig, ReplicaLimits
from dspine_cluster.errors import ConfigError


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"min_replicas": 3, "max_replicas": 2}, "min_replicas"),
        ({"max_step_up": 0}, "max_step_up"),
        ({"down_hold_s": -1}, "down_hold_s"),
        ({"down_hold_s": nan}, "down_hold_s"),
        ({"up_cooldown_s": inf}, "up_cooldown_s"),
    ],
)
def test_limits_that_make_no_sense_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ReplicaLimits(**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"verifier_utilisation": 0.0}, "verifier_utilisation"),
        ({"smoothing_s": 0.0}, "smoothing_s"),
        ({"inter_token_s": nan}, "inter_token_s"),
        ({"stale_s": inf}, "stale_s"),
        ({"lead_s": -1.0}, "lead_s"),
        ({"lead_s": inf}, "lead_s"),
        ({"hysteresis": nan}, "hysteresis"),
        ({"drafters_per_verifier": -1.0}, "drafters_per_verifier"),
        ({"max_draft_wait_ratio": nan}, "max_draft_wait_ratio"),
        ({"probe_after_s": nan}, "probe_after_s"),
        ({"zero_after_s": -1.0}, "zero_after_s"),
        ({"verifiers": ReplicaLimits(min_replicas=0)}, "zero_after_s"),
    ],
)
def test_settings_that_make_no_sense_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AutoscalingConfig(**values)
