"""How autoscaling's settings reach Serve's controller: with the deployments that are scaled."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import ray.serve.config as serve_config

from dspine_cluster.config import parse_config
from dspine_cluster.core.autoscaling_config import AutoscalingConfig

_REPORT_PERIOD_S = 1.0
_KEPT_S = 2.0


class Role(StrEnum):
    """Of a deployment that is scaled."""

    VERIFIER = "verifier"
    DRAFTER = "drafter"


@dataclass(frozen=True, slots=True)
class ScalingNote:
    """What a deployment's configuration tells the policies."""

    role: Role
    model: str
    """By which metrics are told apart."""
    settings: Mapping[str, Any]


def serve_autoscaling(
    role: Role, model: str, settings: AutoscalingConfig, num_replicas: int
) -> serve_config.AutoscalingConfig:
    """Serve's own configuration: bounds, no delays, and the policy that is asked where the application has none."""
    limits = settings.verifiers if role is Role.VERIFIER else settings.drafters
    policy = serve_config.AutoscalingPolicy(
        policy_function="dspine_serve.autoscaler:DeploymentAutoscaler",
        policy_kwargs={"role": role.value, "model": model, "settings": asdict(settings)},
    )
    with warnings.catch_warnings():
        # Serve 2.60 has no other way to have replicas tell their figures more often than every ten seconds.
        warnings.simplefilter("ignore", DeprecationWarning)
        return serve_config.AutoscalingConfig(
            min_replicas=limits.min_replicas,
            max_replicas=limits.max_replicas,
            initial_replicas=num_replicas,
            metrics_interval_s=_REPORT_PERIOD_S,
            look_back_period_s=_KEPT_S,
            upscale_delay_s=0.0,
            downscale_delay_s=0.0,
            policy=policy,
        )


def read_note(config: serve_config.AutoscalingConfig) -> ScalingNote | None:
    """What `serve_autoscaling` has put there; None for deployments that others scale."""
    kwargs = config.policy.policy_kwargs
    if not isinstance(kwargs, Mapping) or kwargs.keys() != {"role", "model", "settings"}:
        return None
    return ScalingNote(Role(kwargs["role"]), kwargs["model"], kwargs["settings"])


def merged_settings(settings: Mapping[str, Any], overrides: Mapping[str, Any]) -> AutoscalingConfig:
    """`overrides` over `settings`, key by key, inner ones as well.

    Raises:
        ConfigError: a key is unknown, or a value of the wrong type or range.
    """
    merged = dict(settings)
    for key, value in overrides.items():
        known = merged.get(key)
        merged[key] = (
            {**known, **value} if isinstance(known, Mapping) and isinstance(value, Mapping) else value
        )
    return parse_config(AutoscalingConfig, merged)
