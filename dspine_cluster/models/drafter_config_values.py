"""Typed values of a drafter's `config.json`; each reader raises ConfigError naming the key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dspine_cluster.errors import ConfigError


def read_mapping(source: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The object at `key`; absent or null is empty."""
    value = source.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"drafter config: {key} must be an object, not {value!r}")
    return value


def refuse_unknown(name: str, section: Mapping[str, Any], known: set[str]) -> None:
    """Raise unless all keys of `section` are known."""
    if unknown := sorted(set(section) - known):
        raise ConfigError(f"drafter config: {name} has unknown keys {unknown}; known are {sorted(known)}")


def read_integer(found: Mapping[str, Any], key: str) -> int:
    """An integer; booleans are none."""
    value = found[key]
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"drafter config: {key} must be an integer, not {value!r}")
    return value


def read_count(found: Mapping[str, Any], key: str) -> int:
    """A positive integer."""
    value = read_integer(found, key)
    if value < 1:
        raise ConfigError(f"drafter config: {key} must be positive, not {value}")
    return value


def read_number(found: Mapping[str, Any], key: str) -> float:
    """A positive number."""
    value = found[key]
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise ConfigError(f"drafter config: {key} must be a positive number, not {value!r}")
    return float(value)


def read_list(found: Mapping[str, Any], key: str, kind: type) -> list[Any]:
    """A list whose items are exactly of `kind`."""
    value = found[key]
    if not isinstance(value, list | tuple) or not all(type(item) is kind for item in value):
        raise ConfigError(f"drafter config: {key} must be a list of {kind.__name__}, not {value!r}")
    return list(value)
