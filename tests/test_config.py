from __future__ import annotations

import pytest
import torch

from dspine_cluster.config import (
    DrafterServiceConfig,
    DraftingConfig,
    EngineConfig,
    ModelSource,
    TracingConfig,
    VerifierConfig,
    limit_threads,
    parse_config,
    parse_verify,
)
from dspine_cluster.errors import ConfigError


def test_nested_values_become_frozen_dataclasses() -> None:
    config = parse_config(
        VerifierConfig, {"target": {"name": "/models/x"}, "engine": {"max_running_requests": 2}}
    )
    assert config.target == ModelSource("/models/x")
    assert config.engine.max_running_requests == 2


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"engin": {}}, "engin"),
        ({"engine": {"max_runing_requests": 2}}, "max_runing_requests"),
        ({"engine": {"dtype": "float16"}}, "dtype"),
        ({"engine": {"prefill_chunk_tokens": 100}}, "prefill_chunk_tokens"),
        ({"engine": {"max_batch_tokens": 64}}, "max_batch_tokens"),
        ({"engine": {"memory_fraction": 0}}, "memory_fraction"),
        ({"drafting": {"verify": "fixed:16"}}, "fixed:16"),
        ({"engine": {"max_model_len_tokens": 15}}, "max_model_len_tokens"),
        ({"drafting": {"late_factor": 0.5}}, "late_factor"),
        ({"drafting": {"first_deadline_s": float("inf")}}, "first_deadline_s"),
        ({"drafting": {"breaker_rest_s": float("nan")}}, "breaker_rest_s"),
        ({"drafting": {"first_deadline_s": 0}}, "first_deadline_s"),
        ({"drafting": {"breaker_rest_s": -1}}, "breaker_rest_s"),
        ({"tracing": {"endpoint": "127.0.0.1:4318"}}, "endpoint"),
        ({"tracing": {"endpoint": "http://"}}, "endpoint"),
        ({"tracing": {"endpoint": "http://[::1"}}, "tracing"),
        ({"tracing": {"protocol": "http/json"}}, "protocol"),
        ({"tracing": {"sample_fraction": 1.5}}, "sample_fraction"),
        ({"tracing": {"max_queued_spans": 0}}, "max_queued_spans"),
        ({"tracing": {"export_timeout_s": float("inf")}}, "export_timeout_s"),
        ({"tracing": {"sampling": 1}}, "sampling"),
    ],
)
def test_unknown_keys_and_values_out_of_range_are_refused_by_name(
    values: dict[str, object], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        parse_config(VerifierConfig, values)


@pytest.mark.parametrize(
    ("setting", "length"),
    [("dynamic", None), ("off", 0), ("fixed:0", 0), ("fixed:7", 7), ("fixed:15", 15)],
)
def test_a_verify_setting_fixes_a_length_or_none(setting: str, length: int | None) -> None:
    assert parse_verify(setting) == length


@pytest.mark.parametrize(
    "setting",
    [
        "",
        "fixed",
        "fixed:",
        "fixed:-1",
        "fixed:1.5",
        "fixed:16",
        "fixed:\u0661",
        "fixed:\u00b2",
        "dynamic:3",
        "OFF",
    ],
)
def test_other_verify_settings_are_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match="verify"):
        parse_verify(setting)


def test_defaults_are_valid() -> None:
    assert parse_config(VerifierConfig, {}) == VerifierConfig()
    assert EngineConfig().max_batch_tokens >= EngineConfig().max_running_requests + 64
    assert DraftingConfig().verify == "dynamic"


def test_a_drafter_replica_needs_an_endpoint() -> None:
    with pytest.raises(ConfigError, match="endpoints"):
        parse_config(DrafterServiceConfig, {})


def test_secrets_are_not_shown() -> None:
    secret = "a secret of an application"
    configs = (
        VerifierConfig(secret=secret),
        DrafterServiceConfig(endpoints=("tcp:127.0.0.1:0",), secret=secret),
        TracingConfig(endpoint="http://collector:4318", headers={"api-key": secret}),
    )
    assert not any(secret in repr(config) for config in configs)


@pytest.mark.parametrize("setting", ["2", "4,2"])
def test_a_stated_number_of_threads_is_left_as_torch_read_it(
    monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", setting)
    limit_threads()
    assert torch.get_num_threads() == before
