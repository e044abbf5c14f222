"""From the options of `dspine serve` to the application's arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import ValidationError

from dspine_cluster.errors import ConfigError
from dspine_serve.args import AppArgs

_CUDA_ENGINE = {
    "device": "cuda",
    "dtype": "bfloat16",
    "max_batch_tokens": 2048,
    "prefill_chunk_tokens": 1024,
}
_OWN_GPU_FRACTION = 0.9
_SHARED_GPU_FRACTION = 0.6
_SHARED_GPU = {"verifiers": 0.7, "drafters": 0.3}
"""Of one GPU that both have to live on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """What the command line says; None leaves a setting to its default."""

    target: str
    target_revision: str | None = None
    drafter: str | None = None
    """None takes the built-in drafter of the built-in target, and else `none`."""
    drafter_revision: str | None = None
    num_verifiers: int = 1
    num_drafters: int = 1
    model_name: str | None = None
    max_model_len_tokens: int | None = None
    dtype: str | None = None
    device: str | None = None
    verify: str | None = None
    otlp_endpoint: str | None = None
    assignments: Sequence[str] = ()
    """`key=value` with dots in the key and YAML as the value; they outdo what is said above."""


def app_args(options: ServeOptions, num_gpus: int) -> AppArgs:
    """The arguments of the application, for a machine with so many GPUs. With `device` cuda every replica reserves a
    GPU of its own, but one verifier and one drafter share the only one.

    Raises:
        ConfigError: a setting is unknown or out of range, or an assignment is none.
    """
    drafter = options.drafter or ("miniature-dspine" if options.target == "miniature" else "none")
    values: dict[str, Any] = {
        "target": {"name": options.target, "revision": options.target_revision},
        "drafter": {"name": drafter, "revision": options.drafter_revision},
        "verifiers": {"num_replicas": options.num_verifiers},
        "drafters": {"num_replicas": options.num_drafters},
    }
    if options.device is not None:
        _update(values, _device_values(options, drafter != "none", num_gpus))
    said = {
        "model_name": options.model_name,
        "engine.max_model_len_tokens": options.max_model_len_tokens,
        "engine.dtype": options.dtype,
        "drafting.verify": options.verify,
        "tracing.endpoint": options.otlp_endpoint,
    }
    for key, value in said.items():
        if value is not None:
            _update(values, _nested(key, value))
    for assignment in options.assignments:
        key, is_assignment, text = assignment.partition("=")
        if not is_assignment or not key:
            raise ConfigError(f"--set takes key=value, not {assignment!r}")
        _update(values, _nested(key, _parse(key, text)))
    try:
        return AppArgs.model_validate(values)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise ConfigError(f"{problems} (`dspine config` lists all settings)") from error


def _device_values(options: ServeOptions, has_drafter: bool, num_gpus: int) -> dict[str, Any]:
    """What goes with a device."""
    if options.device != "cuda":
        return {"engine": {"device": options.device}, "drafters": {"device": options.device}}
    is_shared = has_drafter and num_gpus == options.num_verifiers == options.num_drafters == 1
    fraction = _SHARED_GPU_FRACTION if is_shared else _OWN_GPU_FRACTION
    gpus = _SHARED_GPU if is_shared else dict.fromkeys(_SHARED_GPU, 1)
    return {
        "engine": {**_CUDA_ENGINE, "memory_fraction": fraction},
        "verifiers": {"num_gpus": gpus["verifiers"]},
        "drafters": {"num_gpus": gpus["drafters"], "device": "cuda"},
    }


def _parse(key: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"the value of --set {key} is no YAML: {text!r}") from error


def _nested(key: str, value: Any) -> dict[str, Any]:
    """`a.b` and a value as `{a: {b: value}}`."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return dict(value)


def _update(values: dict[str, Any], new: Mapping[str, Any]) -> None:
    """Put `new` over `values`, part by part."""
    for key, value in new.items():
        known = values.get(key)
        if isinstance(value, Mapping) and isinstance(known, dict):
            _update(known, value)
        else:
            values[key] = value
