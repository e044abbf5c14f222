"""What the engine must know of a target, read from its `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dspine_cluster.errors import ConfigError

LINEAR_ATTENTION = "linear_attention"
FULL_ATTENTION = "full_attention"


@dataclass(frozen=True, slots=True)
class GatedDeltaConfig:
    """Head counts and dims of the Gated DeltaNet layers."""

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int

    @property
    def key_dim(self) -> int:
        return self.num_key_heads * self.key_head_dim

    @property
    def value_dim(self) -> int:
        return self.num_value_heads * self.value_head_dim

    @property
    def conv_dim(self) -> int:
        """Width of the convolved [query | key | value]."""
        return 2 * self.key_dim + self.value_dim


@dataclass(frozen=True, slots=True)
class TargetConfig:
    """A `qwen3` or `qwen3_5_text` target."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    layer_types: tuple[str, ...]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    rms_norm_eps: float
    tie_word_embeddings: bool
    attention_bias: bool
    max_position_embeddings: int
    eos_token_ids: tuple[int, ...]
    gated_delta: GatedDeltaConfig | None

    @property
    def num_attention_layers(self) -> int:
        return self.layer_types.count(FULL_ATTENTION)

    @property
    def num_gated_delta_layers(self) -> int:
        return self.layer_types.count(LINEAR_ATTENTION)


def parse_target_config(config_json: Mapping[str, Any]) -> TargetConfig:
    """Read a Hugging Face `config.json`; the text part of a multimodal `qwen3_5` config is taken.

    Keys that do not change the mathematics of the text model are ignored, as the format requires.

    Raises:
        ConfigError: a key is missing, of the wrong type or of an unsupported value; the message names it.
    """
    model_type = _read(config_json, "model_type", str)
    if model_type == "qwen3_5":
        text = dict(_read(config_json, "text_config", Mapping))
        text["model_type"] = "qwen3_5_text"
        if "tie_word_embeddings" in config_json:
            text["tie_word_embeddings"] = config_json["tie_word_embeddings"]
        return parse_target_config(text)
    if model_type not in ("qwen3", "qwen3_5_text"):
        raise ConfigError(f"model_type {model_type!r} is not supported; use qwen3, qwen3_5_text or qwen3_5")
    is_hybrid = model_type == "qwen3_5_text"
    num_layers = _read_count(config_json, "num_hidden_layers")
    layer_types = _layer_types(config_json, num_layers, is_hybrid)
    _refuse_unsupported(config_json)
    num_heads = _read_count(config_json, "num_attention_heads")
    num_kv_heads = _read_count(config_json, "num_key_value_heads")
    if num_heads % num_kv_heads:
        raise ConfigError(
            f"num_attention_heads {num_heads} is not a multiple of num_key_value_heads {num_kv_heads}"
        )
    head_dim = _read_count(config_json, "head_dim")
    rope_theta, rotary_factor = _rotary(config_json, default_factor=0.25 if is_hybrid else 1.0)
    return TargetConfig(
        model_type=model_type,
        vocab_size=_read_count(config_json, "vocab_size"),
        hidden_size=_read_count(config_json, "hidden_size"),
        intermediate_size=_read_count(config_json, "intermediate_size"),
        num_layers=num_layers,
        layer_types=layer_types,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rotary_dim=int(head_dim * rotary_factor),
        rope_theta=rope_theta,
        rms_norm_eps=float(_read(config_json, "rms_norm_eps", (int, float))),
        tie_word_embeddings=bool(config_json.get("tie_word_embeddings", False)),
        attention_bias=bool(config_json.get("attention_bias", False)),
        max_position_embeddings=_read_count(config_json, "max_position_embeddings"),
        eos_token_ids=parse_eos_token_ids(config_json),
        gated_delta=_gated_delta(config_json) if LINEAR_ATTENTION in layer_types else None,
    )


def parse_eos_token_ids(config_json: Mapping[str, Any]) -> tuple[int, ...]:
    """`eos_token_id` of a config or generation config as a tuple; absent or null gives none.

    Raises:
        ConfigError: it is neither a token id nor a list of them.
    """
    value = config_json.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in ids):
        raise ConfigError(f"eos_token_id must be a token id or a list of them, not {value!r}")
    return tuple(ids)


def write_target_config(config: TargetConfig) -> dict[str, Any]:
    """The `config.json` that `parse_target_config` and transformers read back as `config`."""
    is_hybrid = config.model_type == "qwen3_5_text"
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_theta}
    if is_hybrid:
        rope["partial_rotary_factor"] = config.rotary_dim / config.head_dim
    written: dict[str, Any] = {
        "architectures": ["Qwen3_5ForCausalLM" if is_hybrid else "Qwen3ForCausalLM"],
        "model_type": config.model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "layer_types": list(config.layer_types),
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rope_parameters": rope,
        "rms_norm_eps": config.rms_norm_eps,
        "tie_word_embeddings": config.tie_word_embeddings,
        "attention_bias": config.attention_bias,
        "max_position_embeddings": config.max_position_embeddings,
        "eos_token_id": list(config.eos_token_ids) or None,
    }
    if config.gated_delta is not None:
        written |= {
            "linear_num_key_heads": config.gated_delta.num_key_heads,
            "linear_num_value_heads": config.gated_delta.num_value_heads,
            "linear_key_head_dim": config.gated_delta.key_head_dim,
            "linear_value_head_dim": config.gated_delta.value_head_dim,
            "linear_conv_kernel_dim": config.gated_delta.conv_kernel,
        }
    return written


def _read(config_json: Mapping[str, Any], key: str, kind: type | tuple[type, ...]) -> Any:
    if key not in config_json:
        raise ConfigError(f"config.json lacks {key!r}")
    value = config_json[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ConfigError(f"config.json: {key!r} has the wrong type: {value!r}")
    return value


def _read_count(config_json: Mapping[str, Any], key: str) -> int:
    value = _read(config_json, key, int)
    if value < 1:
        raise ConfigError(f"config.json: {key!r} must be positive, not {value}")
    return int(value)


def _layer_types(config_json: Mapping[str, Any], num_layers: int, is_hybrid: bool) -> tuple[str, ...]:
    if config_json.get("layer_types") is not None:
        layer_types = tuple(_read(config_json, "layer_types", (list, tuple)))
    elif is_hybrid:
        interval = _read_count({"full_attention_interval": 4, **config_json}, "full_attention_interval")
        layer_types = tuple(
            LINEAR_ATTENTION if (i + 1) % interval else FULL_ATTENTION for i in range(num_layers)
        )
    else:
        layer_types = (FULL_ATTENTION,) * num_layers
    known = {FULL_ATTENTION, LINEAR_ATTENTION} if is_hybrid else {FULL_ATTENTION}
    if not set(layer_types) <= known:
        raise ConfigError(f"config.json: layer_types {sorted(set(layer_types) - known)} are not supported")
    if len(layer_types) != num_layers:
        raise ConfigError(
            f"config.json: layer_types has {len(layer_types)} entries for {num_layers} num_hidden_layers"
        )
    return layer_types


def _refuse_unsupported(config_json: Mapping[str, Any]) -> None:
    for key, supported in (
        ("hidden_act", "silu"),
        ("use_sliding_window", False),
        ("attn_output_gate", True),
        ("quantization_config", None),
    ):
        value = config_json.get(key, supported)
        if value != supported:
            raise ConfigError(f"config.json: {key} {value!r} is not supported, only {supported!r}")


def _rotary(config_json: Mapping[str, Any], default_factor: float) -> tuple[float, float]:
    """(theta, share of the head that rotates), from `rope_parameters` or from the older flat keys."""
    rope = config_json.get("rope_parameters")
    if rope is None:
        scaling = config_json.get("rope_scaling") or {}
        rope = {
            **scaling,
            **{k: config_json[k] for k in ("rope_theta", "partial_rotary_factor") if k in config_json},
        }
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type not in ("default", "mrope"):
        raise ConfigError(f"config.json: rope_type {rope_type!r} is not supported, only 'default'")
    theta = float(_read(rope, "rope_theta", (int, float)))
    return theta, float(
        rope.get("partial_rotary_factor", config_json.get("partial_rotary_factor", default_factor))
    )


def _gated_delta(config_json: Mapping[str, Any]) -> GatedDeltaConfig:
    config = GatedDeltaConfig(
        num_key_heads=_read_count(config_json, "linear_num_key_heads"),
        num_value_heads=_read_count(config_json, "linear_num_value_heads"),
        key_head_dim=_read_count(config_json, "linear_key_head_dim"),
        value_head_dim=_read_count(config_json, "linear_value_head_dim"),
        conv_kernel=_read_count(config_json, "linear_conv_kernel_dim"),
    )
    if config.num_value_heads % config.num_key_heads:
        raise ConfigError(
            f"linear_num_value_heads {config.num_value_heads} is not a multiple of "
            f"linear_num_key_heads {config.num_key_heads}"
        )
    return config
