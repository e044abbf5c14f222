from __future__ import annotations

import pytest
from pydantic import ValidationError
from ray.serve._private.config import DeploymentConfig
from ray.serve.config import AutoscalingConfig as ServeAutoscalingConfig

from dspine_cluster.core.autoscaling_config import AutoscalingConfig, ReplicaLimits
from dspine_cluster.errors import ConfigError
from dspine_serve.app import build
from dspine_serve.args import AppArgs
from dspine_serve.scaling_config import Role, merged_settings, read_note, serve_autoscaling

SETTINGS = AutoscalingConfig(inter_token_s=0.05, verifiers=ReplicaLimits(2, 9))


def test_settings_come_back_from_where_serve_keeps_them() -> None:
    config = serve_autoscaling(Role.VERIFIER, "small", SETTINGS, 3)
    with pytest.warns(DeprecationWarning, match="metrics_interval_s"):
        kept = DeploymentConfig.from_proto_bytes(DeploymentConfig(autoscaling_config=config).to_proto_bytes())
    assert kept.autoscaling_config is not None
    note = read_note(kept.autoscaling_config)
    assert note is not None
    assert (note.role, note.model, merged_settings(note.settings, {})) == (Role.VERIFIER, "small", SETTINGS)


def test_serve_starts_with_the_configured_number_and_keeps_the_bounds() -> None:
    config = serve_autoscaling(Role.VERIFIER, "small", SETTINGS, 3)
    assert (config.min_replicas, config.initial_replicas, config.max_replicas) == (2, 3, 9)
    assert config.upscale_delay_s == config.downscale_delay_s == 0.0


def test_what_others_configure_has_no_note() -> None:
    assert read_note(ServeAutoscalingConfig()) is None


def test_overrides_reach_inner_keys_and_leave_their_neighbours() -> None:
    merged = merged_settings(
        {"verifiers": {"min_replicas": 2, "max_replicas": 9}}, {"verifiers": {"max_replicas": 5}}
    )
    assert merged.verifiers == ReplicaLimits(2, 5)


@pytest.mark.parametrize("settings", [{"inter_token": 1}, {"verifiers": {"most": 1}}, {"lead_s": -1.0}])
def test_wrong_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        merged_settings({}, settings)
    with pytest.raises((ValidationError, ConfigError)):
        AppArgs.model_validate({"autoscaling": settings})


@pytest.mark.parametrize(
    "args",
    [
        {"verifiers": {"autoscaled": True, "num_replicas": 65}},
        {"drafters": {"autoscaled": True}, "autoscaling": {"drafters": {"min_replicas": 2}}},
        {
            "verifiers": {"autoscaled": True},
            "autoscaling": {"zero_after_s": 60, "verifiers": {"min_replicas": 0}},
        },
    ],
)
def test_numbers_begin_within_their_bounds_and_a_verifier_is_left(args: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="replicas"):
        AppArgs.model_validate(args)


def test_only_what_is_to_be_scaled_is() -> None:
    args = AppArgs.model_validate({"verifiers": {"autoscaled": True, "num_replicas": 2}})
    ingress = build(args)._bound_deployment
    verifier, drafter = (app._bound_deployment for app in ingress.init_args[2:])
    assert verifier._deployment_config.autoscaling_config.initial_replicas == 2
    assert drafter._deployment_config.autoscaling_config is None
    assert ingress.init_args[0].is_autoscaled
