from __future__ import annotations

from typing import Any

import pytest
from transformers import Qwen3_5Config, Qwen3_5TextConfig, Qwen3Config

from dspine_cluster.errors import ConfigError
from dspine_cluster.models.config import parse_target_config, write_target_config

HYBRID: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "vocab_size": 3072,
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 4096,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "eos_token_id": 5,
}


def test_three_recurrent_layers_precede_each_full_one_by_default() -> None:
    config = parse_target_config(HYBRID)
    assert config.layer_types == ("linear_attention", *["linear_attention"] * 2, "full_attention") * 2
    assert (config.num_attention_layers, config.num_gated_delta_layers) == (2, 6)


def test_a_multimodal_config_gives_its_text_part() -> None:
    nested = {
        "model_type": "qwen3_5",
        "text_config": {**HYBRID, "model_type": "qwen3_5_text"},
        "vision_config": {},
    }
    assert parse_target_config(nested) == parse_target_config(HYBRID)


def test_an_outer_tie_of_embeddings_overrides_the_text_part() -> None:
    nested = {"model_type": "qwen3_5", "text_config": HYBRID, "tie_word_embeddings": True}
    assert parse_target_config(nested).tie_word_embeddings


def test_flat_rope_keys_equal_rope_parameters() -> None:
    flat = {k: v for k, v in HYBRID.items() if k != "rope_parameters"}
    flat |= {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "rope_scaling": None}
    assert parse_target_config(flat) == parse_target_config(HYBRID)


def test_recurrent_widths_follow_from_head_counts() -> None:
    delta = parse_target_config(HYBRID).gated_delta
    assert delta is not None
    assert (delta.key_dim, delta.value_dim, delta.conv_dim) == (64, 192, 320)


@pytest.mark.parametrize("hf_config", [Qwen3_5TextConfig(), Qwen3_5Config(), Qwen3Config()])
def test_configs_that_transformers_writes_are_read(hf_config: Any) -> None:
    text = hf_config.get_text_config()
    config = parse_target_config(hf_config.to_dict())
    assert config.layer_types == tuple(text.layer_types)
    assert config.rope_theta == text.rope_parameters["rope_theta"]


def test_what_is_written_reads_back_equal() -> None:
    config = parse_target_config(HYBRID)
    assert parse_target_config(write_target_config(config)) == config


@pytest.mark.parametrize(("value", "ids"), [(None, ()), (7, (7,)), ([7, 9], (7, 9))])
def test_end_tokens_may_be_one_or_many_or_none(value: Any, ids: tuple[int, ...]) -> None:
    assert parse_target_config({**HYBRID, "eos_token_id": value}).eos_token_ids == ids


@pytest.mark.parametrize("key", [k for k in HYBRID if k not in ("eos_token_id", "rope_parameters")])
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        parse_target_config({k: v for k, v in HYBRID.items() if k != key})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "llama"),
        ("hidden_size", "192"),
        ("vocab_size", 0),
        ("num_attention_heads", 3),
        ("linear_num_value_heads", 5),
        ("layer_types", ["full_attention"]),
        ("full_attention_interval", 0),
        ("full_attention_interval", "4"),
        ("layer_types", ["sliding_attention"] * 8),
        ("hidden_act", "gelu"),
        ("attn_output_gate", False),
        ("quantization_config", {"quant_method": "fp8"}),
        ("eos_token_id", "end"),
    ],
)
def test_a_wrong_or_unsupported_value_is_named(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=key):
        parse_target_config({**HYBRID, key: value})


def test_scaled_rope_is_refused() -> None:
    with pytest.raises(ConfigError, match="rope_type 'yarn'"):
        parse_target_config({**HYBRID, "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e7}})


def test_a_dense_target_with_a_sliding_window_is_refused() -> None:
    with pytest.raises(ConfigError, match="use_sliding_window"):
        parse_target_config({**HYBRID, "model_type": "qwen3", "use_sliding_window": True})
