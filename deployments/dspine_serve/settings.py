"""Every setting of the application with its default, unit and meaning, read from where the settings are declared."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dspine_cluster.config import ModelSource
from dspine_serve.args import AppArgs

_UNITS = {
    "bytes": "bytes",
    "tokens": "tokens",
    "requests": "requests",
    "verifier": "drafters",
    "up": "replicas",
    "down": "replicas",
    "hysteresis": "replicas",
    "ratio": "share",
    "utilisation": "share",
    "gain": "times",
    "choices": "completions",
    "failures": "rounds",
    "spans": "spans",
    "factor": "times",
    "weight": "times",
    "pressure": "times",
    "candidates": "verifiers",
    "loaded": "verifiers",
    "fraction": "share",
    "replicas": "replicas",
    "parallel": "ranks",
    "cpus": "CPUs",
    "gpus": "GPUs",
    "ms": "ms",
    "s": "s",
}
"""By the word with which names of numbers end."""
_NUMBERS = {"integer", "number"}
_NONE = re.compile(r"\bNone\b")
"""As declarations call what YAML calls null."""

INTRODUCTION = """\
# Settings

`args` of a Serve config file such as [`deployments.yaml`](../deployments.yaml), and what `dspine serve --set` takes.
A dot leads into a part: `engine.dtype` is `dtype` below `engine`. Unknown keys are refused. `dspine config` prints this
list; `dspine config --markdown` writes this page.
"""


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of the application's arguments."""

    key: str
    """With dots between the parts."""
    default: str
    """As YAML has it."""
    unit: str
    """Empty for what is no number."""
    meaning: str
    """In Markdown, without line breaks."""


def all_settings() -> list[Setting]:
    """In the order in which they are declared."""
    schema = AppArgs.model_json_schema()
    return list(_settings(schema, schema["$defs"], {}, ""))


def as_markdown(settings: Sequence[Setting]) -> str:
    """The reference page: a table for each part."""
    page = INTRODUCTION
    part = None
    for setting in settings:
        head = setting.key.rpartition(".")[0]
        if head != part:
            part = head
            title = f"`{part}`" if part else "The application"
            page += f"\n## {title}\n\n| key | default | unit | meaning |\n|---|---|---|---|\n"
        meaning = setting.meaning.replace("|", "\\|")
        page += f"| `{setting.key}` | `{setting.default}` | {setting.unit} | {meaning} |\n"
    return page


def _settings(
    schema: Mapping[str, Any], parts: Mapping[str, Any], defaults: Mapping[str, Any], prefix: str
) -> Iterator[Setting]:
    """Those of one part, single keys before the parts below it."""
    nested = []
    for name, field in schema["properties"].items():
        default = defaults.get(name, field.get("default"))
        part = field.get("$ref", "").rpartition("/")[2]
        if part and part != ModelSource.__name__:
            nested.append(_settings(parts[part], parts, default or {}, f"{prefix}{name}."))
        else:
            meaning = _NONE.sub("null", " ".join(field["description"].split()))
            yield Setting(f"{prefix}{name}", _text(default), _unit(name, field), meaning)
    for settings in nested:
        yield from settings


def _unit(name: str, field: Mapping[str, Any]) -> str:
    kinds = {kind.get("type") for kind in field.get("anyOf", [field])}
    words = name.removesuffix("_per_step").split("_")
    if words[-2:] == ["per", "s"]:
        return f"{words[-3]}/s"
    return _UNITS.get(words[-1], "") if kinds & _NUMBERS else ""


def _text(default: Any) -> str:
    if isinstance(default, Mapping) and "name" in default:
        default = default["name"]
    return default if isinstance(default, str) else json.dumps(default)
