from __future__ import annotations

from typing import Any

import pytest

from dspine_cluster.errors import ConfigError
from dspine_cluster.models.drafter_config import (
    DrafterConfig,
    parse_drafter_config,
    write_drafter_config,
)
from tests.models.drafter_cases import FULL, SLIDING, small_config


def config_json(kind: str = "dspine", **changes: Any) -> dict[str, Any]:
    """As published for the 8B target, with the keys that every Hugging Face config carries."""
    values: dict[str, Any] = {
        "architectures": ["DSpineDraftModel" if kind == "dspine" else "DFlashDraftModel"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "block_size": 16,
        "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
        "dtype": "bfloat16",
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "layer_types": [FULL] * 5,
        "max_position_embeddings": 40960,
        "model_type": "qwen3",
        "num_attention_heads": 32,
        "num_hidden_layers": 5,
        "num_key_value_heads": 8,
        "num_target_layers": 36,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "vocab_size": 151936,
    }
    if kind == "dspine":
        values["dspine_config"] = {"transfer_rank": 1024, "message_size": 512, "top_k": 16}
    return values | changes


def without(source: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in source.items() if key not in keys}


@pytest.mark.parametrize("kind", ["dspine", "dflash"])
def test_a_published_config_is_read(kind: str) -> None:
    config = parse_drafter_config(config_json(kind))
    assert config.kind == kind
    assert (config.hidden_size, config.num_layers, config.num_heads, config.num_kv_heads) == (4096, 5, 32, 8)
    assert (config.mask_token_id, config.target_layer_ids) == (151669, (1, 9, 17, 25, 33))
    assert (config.block_size, config.num_proposals, config.top_k) == (16, 15, 16)
    assert (config.transfer_rank, config.message_size) == ((1024, 512) if kind == "dspine" else (0, 0))


def test_the_nested_layout_reads_as_the_flat_one() -> None:
    assert parse_drafter_config({"config": config_json()}) == parse_drafter_config(config_json())


def test_rope_parameters_read_as_rope_theta() -> None:
    nested = without(config_json(), "rope_theta") | {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}
    }
    assert parse_drafter_config(nested) == parse_drafter_config(config_json())


def test_training_options_of_a_published_dspine_config_are_ignored() -> None:
    dspine = config_json()["dspine_config"] | {"ce_weight": 0.1, "replacement_hold_ratio": 1 / 6}
    assert parse_drafter_config(config_json(dspine_config=dspine)) == parse_drafter_config(config_json())


@pytest.mark.parametrize(
    "config",
    [
        small_config(),
        small_config(layer_types=(FULL, SLIDING, FULL), sliding_window=9),
        small_config("dflash"),
        small_config(
            "dflash", layer_types=(SLIDING, FULL, FULL), sliding_window=9, is_causal=(True, False, False)
        ),
        small_config("dflash", is_causal=(True,) * 3),
        small_config("dflash", layer_types=(SLIDING,) * 3, is_causal=(False,) * 3),
    ],
)
def test_a_written_config_reads_back(config: DrafterConfig) -> None:
    assert parse_drafter_config(write_drafter_config(config)) == config


def test_layers_of_mixed_causality_cannot_be_written() -> None:
    with pytest.raises(ConfigError, match="is_causal"):
        write_drafter_config(small_config("dflash", is_causal=(True, False, False)))


def test_all_missing_keys_are_named_at_once() -> None:
    incomplete = without(config_json(), "hidden_size", "rope_theta", "block_size") | {
        "dspine_config": {"top_k": 16},
        "dflash_config": {"mask_token_id": 1},
        "layer_types": [SLIDING] * 5,
    }
    del incomplete["sliding_window"]
    with pytest.raises(ConfigError) as error:
        parse_drafter_config(incomplete)
    for key in (
        "hidden_size",
        "rope_theta",
        "block_size",
        "dspine_config.transfer_rank",
        "dspine_config.message_size",
        "dflash_config.target_layer_ids",
        "sliding_window",
    ):
        assert key in str(error.value)


def test_a_null_window_is_full_attention() -> None:
    config = parse_drafter_config(config_json(layer_types=[SLIDING] * 5, sliding_window=None))
    assert [config.window(layer) for layer in range(5)] == [None] * 5
    assert config.context_window is None


def test_a_window_switched_off_is_full_attention() -> None:
    sliding: dict[str, Any] = {"layer_types": [SLIDING] * 5, "sliding_window": 8192}
    assert parse_drafter_config(config_json(**sliding)).context_window == 8192
    assert parse_drafter_config(config_json(**sliding, use_sliding_window=False)).context_window is None


def test_context_may_be_dropped_only_where_every_layer_slides() -> None:
    assert small_config(layer_types=(SLIDING,) * 3, sliding_window=9).context_window == 9
    assert small_config(layer_types=(SLIDING, SLIDING, FULL), sliding_window=9).context_window is None


def test_a_window_concerns_sliding_layers_only() -> None:
    config = small_config(layer_types=(SLIDING, FULL, SLIDING), sliding_window=9)
    assert [config.window(layer) for layer in range(3)] == [9, None, 9]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (True, False, True, False, False)),
        ({"is_causal": True}, (True,) * 5),
        ({"is_causal": False}, (False,) * 5),
        ({"dflash_config": {"mask_token_id": 1, "target_layer_ids": [1], "is_causal": True}}, (True,) * 5),
    ],
)
def test_dflash_blocks_follow_the_config_then_the_layer_type(
    changes: dict[str, Any], expected: tuple[bool, ...]
) -> None:
    layer_types = [SLIDING, FULL, SLIDING, FULL, FULL]
    config = parse_drafter_config(config_json("dflash", layer_types=layer_types, sliding_window=8, **changes))
    assert config.is_causal == expected


def test_dspine_blocks_are_causal_in_every_layer() -> None:
    assert parse_drafter_config(config_json()).is_causal == (True,) * 5


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_bias": True}, "attention_bias"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type"),
        ({"rope_parameters": "default"}, "rope_parameters"),
        ({"partial_rotary_factor": 0.25}, "partial_rotary_factor"),
        ({"architectures": ["DFlash2DraftModel"]}, "DFlash2DraftModel"),
        ({"is_causal": False}, "is_causal"),
        ({"is_causal": "yes"}, "is_causal"),
        (
            {"dflash_config": {"mask_token_id": 1, "target_layer_ids": [1], "conv_group_size": 8}},
            "conv_group_size",
        ),
        ({"dspine_config": {"transfer_rank": 8, "message_size": 8, "top_k": 8, "depth": 2}}, "depth"),
        ({"layer_types": [FULL] * 4}, "layer_types"),
        ({"layer_types": ["linear_attention"] * 5}, "layer_types"),
        ({"layer_types": "full_attention"}, "layer_types"),
        ({"sliding_window": 0}, "sliding_window"),
        ({"block_size": 1}, "block_size"),
        ({"block_size": 16.0}, "block_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"rms_norm_eps": -1e-6}, "rms_norm_eps"),
        ({"num_key_value_heads": 5}, "num_key_value_heads"),
        ({"head_dim": 127}, "head_dim"),
        ({"vocab_size": 151669}, "mask_token_id"),
        ({"dflash_config": {"mask_token_id": 1, "target_layer_ids": []}}, "target_layer_ids"),
        ({"dflash_config": {"mask_token_id": 1, "target_layer_ids": [2, 2]}}, "target_layer_ids"),
        ({"dflash_config": {"mask_token_id": 1, "target_layer_ids": [-1]}}, "target_layer_ids"),
        ({"dspine_config": {"transfer_rank": 4097, "message_size": 8, "top_k": 8}}, "transfer_rank"),
        ({"dspine_config": {"transfer_rank": 8, "message_size": 8, "top_k": 151936}}, "top_k"),
        ({"dspine_config": 3}, "dspine_config"),
    ],
)
def test_unsupported_and_contradictory_values_are_refused_by_name(
    changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        parse_drafter_config(config_json(**changes))


def test_a_config_that_is_no_drafters_is_refused() -> None:
    target = without(config_json("dflash"), "dflash_config") | {"architectures": None}
    with pytest.raises(ConfigError, match="neither"):
        parse_drafter_config(target)
