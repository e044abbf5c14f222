from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError
from ray.serve.config import AutoscalingPolicy
from ray.serve.schema import ServeDeploySchema

from dspine_cluster.config import ModelSource
from dspine_serve.app import build
from dspine_serve.args import AppArgs
from dspine_serve.autoscaler import Autoscaler

ROOT = Path(__file__).parents[2]
CONFIGS = [ROOT / "deployments.yaml", *sorted((ROOT / "deployments").glob("*.yaml"))]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_config_file_is_valid(path: Path) -> None:
    config = ServeDeploySchema.model_validate(yaml.safe_load(path.read_text()))
    [application] = config.applications
    AppArgs.model_validate(application.args)
    assert application.import_path == "dspine_serve.app:build"
    if application.autoscaling_policy is not None:
        policy = AutoscalingPolicy.model_validate(application.autoscaling_policy)
        assert isinstance(policy.get_policy()(**policy.policy_kwargs), Autoscaler)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_config_file_listens_on_the_loopback_address(path: Path) -> None:
    assert yaml.safe_load(path.read_text())["http_options"]["host"] == "127.0.0.1"


def test_the_embedded_default_fits_on_one_core() -> None:
    args = AppArgs()
    assert args.ingresses.num_cpus + args.verifiers.num_cpus + args.drafters.num_cpus <= 1


@pytest.mark.parametrize(
    "args",
    [
        {"targett": "miniature"},
        {"verifiers": {"replicas": 2}},
        {"engine": {"max_len": 5}},
        {"placement": {"requests_s": 0.1}},
        {"target": {"name": "x", "rev": "y"}},
        {"verifiers": {"num_replicas": 0}},
        {"secret": "short"},
    ],
)
def test_unknown_keys_and_wrong_values_are_refused(args: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        AppArgs.model_validate(args)


def test_every_rank_on_gpus_has_a_gpu_of_its_own() -> None:
    engine = {"device": "cuda", "tensor_parallel": 2}
    with pytest.raises(ValidationError, match=r"set verifiers\.num_gpus to 1"):
        AppArgs.model_validate({"engine": engine, "verifiers": {"num_gpus": 0.5}})
    AppArgs.model_validate({"engine": engine, "verifiers": {"num_gpus": 1}})


def test_a_verifier_of_two_ranks_reserves_one_bundle_of_both_on_one_node() -> None:
    args = AppArgs.model_validate(
        {
            "engine": {"device": "cuda", "tensor_parallel": 2},
            "verifiers": {"num_cpus": 1, "num_gpus": 1, "resources": {"dspine_verifier": 1}},
        }
    )
    ingress = build(args)
    [verifier] = [
        value._bound_deployment
        for value in ingress._bound_deployment.init_args
        if getattr(getattr(value, "_bound_deployment", None), "name", "") == "Verifier"
    ]
    assert verifier._deployment_config is not None
    replica = verifier._replica_config
    assert replica.placement_group_bundles == [{"CPU": 2, "GPU": 2, "dspine_verifier": 1}]
    assert replica.placement_group_strategy == "STRICT_PACK"
    assert replica.ray_actor_options["num_gpus"] == 2


def test_a_model_is_a_name_or_a_name_with_a_revision() -> None:
    by_name = AppArgs.model_validate({"target": "/models/t"})
    by_parts = AppArgs.model_validate({"target": {"name": "a/b", "revision": "0" * 40}})
    assert by_name.target == ModelSource("/models/t")
    assert by_parts.target == ModelSource("a/b", "0" * 40)


def test_the_served_name_is_the_targets_unless_given() -> None:
    assert AppArgs().served_name == "miniature"
    assert AppArgs(model_name="mine").served_name == "mine"


def test_the_secret_is_not_shown() -> None:
    args = AppArgs.model_validate({"secret": "0123456789abcdef"})
    assert "0123456789abcdef" not in repr(args)
