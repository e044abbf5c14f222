"""What Serve's controller shows to policies, without a controller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray.serve._private.common import DeploymentID, ReplicaID, TimeStampedValue
from ray.serve.config import AutoscalingContext

from dspine_cluster.core.autoscaling_config import AutoscalingConfig, ReplicaLimits
from dspine_cluster.core.autoscaling_report import encode_drafter, encode_verifier
from dspine_cluster.core.autoscaling_stats import DrafterStats, RoundCurve, VerifierStats
from dspine_serve.scaling_config import Role, serve_autoscaling

SETTINGS = AutoscalingConfig(
    verifiers=ReplicaLimits(max_replicas=8, up_cooldown_s=0.0),
    drafters=ReplicaLimits(min_replicas=0, max_replicas=4, up_cooldown_s=0.0),
    lead_s=0.0,
)
APP = "app"
NAMES = {Role.VERIFIER: "Verifier", Role.DRAFTER: "Drafter"}
IDS = {role: DeploymentID(name=name, app_name=APP) for role, name in NAMES.items()}


def verifier_figures(tokens_per_s: float, acceptance_length: float = 4.0) -> dict[str, float]:
    """Of a verifier that bears 1,600 tokens/s at acceptance length 4, and in proportion at others. It runs as many
    requests as its tokens take."""
    stats = VerifierStats(
        "",
        age_s=0.0,
        curve=RoundCurve((1, 16), (0.04, 0.04)),
        max_requests=16,
        committed_tokens_per_s=tokens_per_s,
        acceptance_length=acceptance_length,
        speculation_gain=2.0,
        running_requests=min(16.0, tokens_per_s * 0.04 / acceptance_length),
        running_tokens=800,
        round_s=0.04,
    )
    return encode_verifier(stats)


def drafter_figures(busy_ratio: float) -> dict[str, float]:
    return encode_drafter(DrafterStats("", 0.0, busy_ratio))


def context(
    role: Role,
    reports: Mapping[str, Mapping[str, float]],
    at: float,
    target: int | None = None,
    settings: AutoscalingConfig = SETTINGS,
) -> AutoscalingContext:
    """Replicas that told `reports` at the time `at` of their clocks; `target` of them are wanted."""
    raw: dict[str, dict[ReplicaID, list[TimeStampedValue]]] = {}
    for name, figures in reports.items():
        for figure, value in figures.items():
            series = raw.setdefault(figure, {})
            series[ReplicaID(name, IDS[role])] = [
                TimeStampedValue(at - 1.0, 0.0),
                TimeStampedValue(at, value),
            ]
    target = len(reports) if target is None else target
    values: dict[str, Any] = {
        "deployment_id": IDS[role],
        "deployment_name": NAMES[role],
        "app_name": APP,
        "current_num_replicas": len(reports),
        "target_num_replicas": target,
        "running_replicas": [ReplicaID(name, IDS[role]) for name in reports],
        "total_num_requests": 0.0,
        "total_queued_requests": 0.0,
        "aggregated_metrics": None,
        "raw_metrics": lambda: raw,
        "capacity_adjusted_min_replicas": 1,
        "capacity_adjusted_max_replicas": 8,
        "policy_state": {},
        "last_scale_up_time": None,
        "last_scale_down_time": None,
        "current_time": at,
        "config": serve_autoscaling(role, "small", settings, max(1, target)),
    }
    return AutoscalingContext(**values)
