"""What the engine must know of a drafter, read from its `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dspine_cluster.errors import ConfigError
from dspine_cluster.models.drafter_config_values import (
    read_count,
    read_integer,
    read_list,
    read_mapping,
    read_number,
    refuse_unknown,
)

FULL_ATTENTION = "full_attention"
SLIDING_ATTENTION = "sliding_attention"
DFLASH_TOP_K = 16

_ARCHITECTURES = {"dspine": "DSpineDraftModel", "dflash": "DFlashDraftModel"}
_DFLASH_KEYS = {"mask_token_id", "target_layer_ids", "block_size", "is_causal", "causal"}
_DSPINE_KEYS = {"transfer_rank", "message_size", "top_k"}
_DSPINE_TRAINING_KEYS = {
    "ce_weight",
    "alignment_weight",
    "alignment_warmup_steps",
    "replacement_layers",
    "replacement_probability",
    "replacement_hold_ratio",
    "replacement_end_ratio",
    "candidate_mass_threshold",
}
_SUPPORTED_VALUES: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("hidden_act", ("silu",)),
    ("attention_bias", (False,)),
    ("quantization_config", (None,)),
)


@dataclass(frozen=True, slots=True)
class DrafterConfig:
    """A `dspine` or `dflash` drafter. Its hidden size and vocabulary are the target's."""

    kind: Literal["dspine", "dflash"]
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope_theta: float
    vocab_size: int
    block_size: int
    """The anchor and the proposals."""
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    """Tapped target layers; id i is the hidden state after layer i (0-based)."""
    layer_types: tuple[str, ...]
    sliding_window: int | None
    """Keys a sliding layer sees, the query's own position counted; None is full attention."""
    is_causal: tuple[bool, ...]
    """Per layer: whether a block token sees only itself and earlier tokens of its block."""
    transfer_rank: int = 0
    message_size: int = 0
    top_k: int = DFLASH_TOP_K
    """Candidates kept at each position; 16 for `dflash`, whose configs do not say."""

    def __post_init__(self) -> None:
        _check(self)

    @property
    def num_proposals(self) -> int:
        return self.block_size - 1

    @property
    def context_window(self) -> int | None:
        """Context positions before the anchor that some layer can still see, or None for all of them.

        Only where every layer slides may older context be dropped.
        """
        if any(self.window(layer) is None for layer in range(self.num_layers)):
            return None
        return self.sliding_window

    def window(self, layer: int) -> int | None:
        """The sliding window of `layer`, None where it attends to everything."""
        return self.sliding_window if self.layer_types[layer] == SLIDING_ATTENTION else None


def parse_drafter_config(config_json: Mapping[str, Any]) -> DrafterConfig:
    """Read a drafter's `config.json`, flat or nested under `config`.

    Keys that do not change the drafter's mathematics are ignored at the top level, as the Hugging Face format
    requires; in `dflash_config` and `dspine_config` an unknown key is refused.

    Raises:
        ConfigError: keys are missing (all of them are named), or one has a wrong type or an unsupported value.
    """
    flat = read_mapping(config_json, "config") if "config" in config_json else config_json
    kind = _kind(flat)
    dflash = read_mapping(flat, "dflash_config")
    dspine = read_mapping(flat, "dspine_config") if kind == "dspine" else {}
    refuse_unknown("dflash_config", dflash, _DFLASH_KEYS)
    refuse_unknown("dspine_config", dspine, _DSPINE_KEYS | _DSPINE_TRAINING_KEYS)
    for key, supported in _SUPPORTED_VALUES:
        if flat.get(key, supported[0]) not in supported:
            raise ConfigError(f"drafter config: {key} {flat[key]!r} is not supported, only {supported[0]!r}")
    found = {
        **{key: flat.get(key) for key in _TOP_LEVEL},
        "block_size": flat.get("block_size", dflash.get("block_size")),
        "rope_theta": _rope_theta(flat),
        "dflash_config.mask_token_id": dflash.get("mask_token_id"),
        "dflash_config.target_layer_ids": dflash.get("target_layer_ids"),
    }
    if kind == "dspine":
        found |= {f"dspine_config.{key}": dspine.get(key) for key in sorted(_DSPINE_KEYS)}
    missing = [key for key, value in found.items() if value is None]
    if SLIDING_ATTENTION in (flat.get("layer_types") or ()) and "sliding_window" not in flat:
        missing.append("sliding_window")
    if missing:
        raise ConfigError(
            f"drafter config lacks {', '.join(missing)}; take the config.json the weights came with"
        )
    layer_types = tuple(read_list(found, "layer_types", str))
    return DrafterConfig(
        kind=kind,
        hidden_size=read_count(found, "hidden_size"),
        num_layers=read_count(found, "num_hidden_layers"),
        num_heads=read_count(found, "num_attention_heads"),
        num_kv_heads=read_count(found, "num_key_value_heads"),
        head_dim=read_count(found, "head_dim"),
        intermediate_size=read_count(found, "intermediate_size"),
        rms_norm_eps=read_number(found, "rms_norm_eps"),
        rope_theta=read_number(found, "rope_theta"),
        vocab_size=read_count(found, "vocab_size"),
        block_size=read_count(found, "block_size"),
        mask_token_id=read_integer(found, "dflash_config.mask_token_id"),
        target_layer_ids=tuple(read_list(found, "dflash_config.target_layer_ids", int)),
        layer_types=layer_types,
        sliding_window=_sliding_window(flat),
        is_causal=_block_causality(kind, flat, dflash, layer_types),
        transfer_rank=read_count(found, "dspine_config.transfer_rank") if kind == "dspine" else 0,
        message_size=read_count(found, "dspine_config.message_size") if kind == "dspine" else 0,
        top_k=read_count(found, "dspine_config.top_k") if kind == "dspine" else DFLASH_TOP_K,
    )


def write_drafter_config(config: DrafterConfig) -> dict[str, Any]:
    """The flat `config.json` that `parse_drafter_config` reads back as `config`.

    Raises:
        ConfigError: the layers of a `dflash` drafter differ in causality in a way the format cannot say.
    """
    written: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[config.kind]],
        "model_type": "qwen3",
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate_size,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "vocab_size": config.vocab_size,
        "block_size": config.block_size,
        "layer_types": list(config.layer_types),
        "sliding_window": config.sliding_window,
        "dflash_config": {
            "mask_token_id": config.mask_token_id,
            "target_layer_ids": list(config.target_layer_ids),
        },
    }
    if config.kind == "dspine":
        written["dspine_config"] = {key: getattr(config, key) for key in sorted(_DSPINE_KEYS)}
    elif config.is_causal != _block_causality("dflash", {}, {}, config.layer_types):
        if len(set(config.is_causal)) > 1:
            raise ConfigError("a dflash config can only say is_causal for all layers at once")
        written["is_causal"] = config.is_causal[0]
    return written


_TOP_LEVEL = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "rms_norm_eps",
    "vocab_size",
    "layer_types",
)


def _check(config: DrafterConfig) -> None:
    """Refuse values that contradict each other."""
    known_types = {FULL_ATTENTION, SLIDING_ATTENTION}
    window = config.sliding_window
    problems = (
        (not set(config.layer_types) <= known_types, f"layer_types must be of {sorted(known_types)}"),
        (
            len(config.layer_types) != config.num_layers,
            "layer_types needs one entry for each of num_hidden_layers",
        ),
        (
            len(config.is_causal) != config.num_layers,
            "is_causal needs one entry for each of num_hidden_layers",
        ),
        (
            config.num_heads % config.num_kv_heads != 0,
            "num_attention_heads must be a multiple of num_key_value_heads",
        ),
        (config.head_dim % 2 != 0, "head_dim must be even"),
        (config.block_size < 2, "block_size must hold the anchor and at least one proposal"),
        (not 0 <= config.mask_token_id < config.vocab_size, "mask_token_id must be below vocab_size"),
        (not config.target_layer_ids, "target_layer_ids must name at least one layer"),
        (min(config.target_layer_ids, default=0) < 0, "target_layer_ids must not be negative"),
        (
            len(set(config.target_layer_ids)) < len(config.target_layer_ids),
            "target_layer_ids must not repeat",
        ),
        (window is not None and window < 1, "sliding_window must be positive, or null for full attention"),
        (
            not 1 <= config.top_k < config.vocab_size,
            "top_k must be in 1 .. vocab_size - 1 (the mask is no candidate)",
        ),
        (
            config.kind == "dflash" and config.top_k != DFLASH_TOP_K,
            f"a dflash drafter has top_k {DFLASH_TOP_K}",
        ),
        (
            config.kind == "dspine" and config.transfer_rank > min(config.hidden_size, config.vocab_size - 1),
            "transfer_rank must be at most min(hidden_size, vocab_size - 1)",
        ),
        (
            config.kind == "dspine" and not all(config.is_causal),
            "a dspine block is causal: is_causal cannot be false",
        ),
    )
    for is_wrong, message in problems:
        if is_wrong:
            raise ConfigError(f"drafter config: {message}")


def _kind(flat: Mapping[str, Any]) -> Literal["dspine", "dflash"]:
    architectures = flat.get("architectures") or []
    unknown = set(architectures) - set(_ARCHITECTURES.values())
    if unknown:
        raise ConfigError(f"drafter config: architectures {sorted(unknown)} are not supported")
    if "dspine_config" in flat or _ARCHITECTURES["dspine"] in architectures:
        return "dspine"
    if "dflash_config" in flat or _ARCHITECTURES["dflash"] in architectures:
        return "dflash"
    raise ConfigError(
        "drafter config has neither dspine_config nor dflash_config: this is not a drafter's folder"
    )


def _block_causality(
    kind: str, flat: Mapping[str, Any], dflash: Mapping[str, Any], layer_types: tuple[str, ...]
) -> tuple[bool, ...]:
    """DSpine blocks are causal. DFlash follows the config; unset, only its sliding layers are causal."""
    values = (flat.get("is_causal"), dflash.get("is_causal"), dflash.get("causal"))
    stated = next((value for value in values if value is not None), None)
    if stated is not None and not isinstance(stated, bool):
        raise ConfigError(f"drafter config: is_causal must be true or false, not {stated!r}")
    if stated is not None:
        return (stated,) * len(layer_types)
    return tuple(kind == "dspine" or layer_type == SLIDING_ATTENTION for layer_type in layer_types)


def _sliding_window(flat: Mapping[str, Any]) -> int | None:
    if flat.get("sliding_window") is None or flat.get("use_sliding_window") is False:
        return None
    return read_integer(flat, "sliding_window")


def _rope_theta(flat: Mapping[str, Any]) -> Any:
    rope = {**read_mapping(flat, "rope_scaling"), **read_mapping(flat, "rope_parameters")}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type != "default":
        raise ConfigError(f"drafter config: rope_type {rope_type!r} is not supported, only 'default'")
    if rope.get("partial_rotary_factor", flat.get("partial_rotary_factor", 1.0)) != 1.0:
        raise ConfigError("drafter config: partial_rotary_factor other than 1.0 is not supported")
    return rope.get("rope_theta", flat.get("rope_theta"))
