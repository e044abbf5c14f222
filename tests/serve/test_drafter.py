from __future__ import annotations

import pytest

from dspine_cluster.config import EngineConfig, ModelSource
from dspine_cluster.errors import ConfigError
from dspine_serve.args import DrafterArgs
from dspine_serve.drafter import DrafterConfig

ENDPOINTS = ("unix:/run/dspine/a.sock",)


def config(**args: object) -> DrafterConfig:
    engine = EngineConfig(dtype="bfloat16", max_model_len_tokens=2048)
    return DrafterConfig(
        ModelSource("miniature"),
        ModelSource("miniature-dspine"),
        engine,
        DrafterArgs.model_validate(args),
        "s" * 16,
    )


def test_features_are_expected_in_the_dtype_of_the_verifiers() -> None:
    assert config().service_config(ENDPOINTS).dtype == "bfloat16"


def test_a_request_may_use_the_whole_context_unless_told_otherwise() -> None:
    assert config().service_config(ENDPOINTS).max_context_tokens == 2048
    assert config(max_context_tokens=64).service_config(ENDPOINTS).max_context_tokens == 64


def test_a_replica_listens_where_it_was_placed() -> None:
    assert config().service_config(ENDPOINTS).endpoints == ENDPOINTS
    with pytest.raises(ConfigError, match="endpoint"):
        config().service_config(())


def test_the_secret_is_not_shown() -> None:
    assert "s" * 16 not in repr(config())
