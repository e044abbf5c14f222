from __future__ import annotations

import pytest
import yaml

from dspine_cluster.config import ModelSource
from dspine_cluster.errors import ConfigError
from dspine_serve.args import AppArgs
from dspine_serve.serve_options import ServeOptions, app_args
from tests.serve.test_args import ROOT


def made(target: str = "miniature", num_gpus: int = 0, **options: object) -> AppArgs:
    return app_args(ServeOptions(target=target, **options), num_gpus)  # type: ignore[arg-type]


def test_the_miniature_alone_is_the_application_of_the_embedded_default() -> None:
    config = yaml.safe_load((ROOT / "deployments.yaml").read_text())
    assert made() == AppArgs.model_validate(config["applications"][0]["args"])


def test_another_target_has_no_drafter_unless_one_is_named() -> None:
    assert made("folder").drafter == ModelSource("none")
    assert made("folder", drafter="other").drafter == ModelSource("other")
    assert made(drafter="miniature-dflash").drafter == ModelSource("miniature-dflash")


def test_options_reach_their_settings() -> None:
    args = made(
        target_revision="a" * 40,
        num_verifiers=3,
        num_drafters=2,
        model_name="name",
        max_model_len_tokens=512,
        dtype="bfloat16",
        verify="fixed:3",
        otlp_endpoint="http://collector:4318",
    )
    assert args.target == ModelSource("miniature", "a" * 40)
    assert (args.verifiers.num_replicas, args.drafters.num_replicas) == (3, 2)
    assert (args.served_name, args.engine.max_model_len_tokens) == ("name", 512)
    assert (args.engine.dtype, args.drafting.verify) == ("bfloat16", "fixed:3")
    assert args.tracing.endpoint == "http://collector:4318"


def test_an_assignment_sets_any_setting_and_outdoes_options() -> None:
    args = made(
        verify="off",
        assignments=[
            "drafting.verify=dynamic",
            "engine.prefix_cache=false",
            "verifiers.resources={dspine_verifier: 1}",
            "target={name: owner/model, revision: abc}",
            "secret=a secret with = inside",
        ],
    )
    assert args.drafting.verify == "dynamic"
    assert not args.engine.prefix_cache
    assert args.verifiers.resources == {"dspine_verifier": 1.0}
    assert args.target == ModelSource("owner/model", "abc")
    assert args.secret is not None
    assert args.secret.get_secret_value() == "a secret with = inside"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"assignments": ["engine.dtypo=float32"]}, "engine.dtypo"),
        ({"assignments": ["engine"]}, "key=value"),
        ({"assignments": ["=1"]}, "key=value"),
        ({"assignments": ["engine={"]}, "no YAML"),
        ({"dtype": "float16"}, "engine.dtype"),
        ({"max_model_len_tokens": 3}, "max_model_len_tokens"),
        ({"verify": "fixed:99"}, "verify"),
    ],
)
def test_a_mistake_is_named(options: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        made(**options)  # type: ignore[arg-type]


def test_replicas_on_gpus_have_one_each() -> None:
    args = made("folder", drafter="other", device="cuda", num_verifiers=2, num_gpus=3)
    assert (args.verifiers.num_gpus, args.drafters.num_gpus) == (1, 1)
    assert (args.engine.device, args.drafters.device, args.engine.dtype) == ("cuda", "cuda", "bfloat16")


def test_a_pair_shares_the_only_gpu_and_leaves_the_drafter_memory() -> None:
    shared = made("folder", drafter="other", device="cuda", num_gpus=1)
    alone = made("folder", device="cuda", num_gpus=1)
    assert shared.verifiers.num_gpus + shared.drafters.num_gpus == 1
    assert alone.verifiers.num_gpus == 1
    assert shared.engine.memory_fraction < alone.engine.memory_fraction


def test_what_is_said_of_a_gpu_outdoes_what_goes_with_it() -> None:
    args = made(device="cuda", dtype="float32", num_gpus=1, assignments=["verifiers.num_gpus=0.5"])
    assert (args.engine.dtype, args.verifiers.num_gpus) == ("float32", 0.5)
