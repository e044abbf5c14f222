"""Rules for the numbers of a scenario, checked by the names of its keys. All raise `ConfigError`."""

from __future__ import annotations

from dataclasses import fields
from math import inf
from typing import Any

from dspine_cluster.config import require


def in_range(config: object, least: float, names: str, *, most: float = inf) -> None:
    """Refuse values, or sequences of them, that are less than `least`, more than `most` or not finite."""
    for name in names.split():
        value = getattr(config, name)
        values = value if isinstance(value, tuple) else (value,)
        rule = f"be finite and at least {least:g}" if most == inf else f"be from {least:g} to {most:g}"
        require(all(least <= v <= most and v < inf for v in values), name, rule)


def positive(config: object, names: str) -> None:
    """Refuse values, or sequences of them, that are not positive and finite."""
    for name in names.split():
        value = getattr(config, name)
        values = value if isinstance(value, tuple) else (value,)
        require(all(0 < v < inf for v in values), name, "be positive and finite")


def not_empty(config: Any) -> None:
    """Refuse fields that are empty sequences."""
    for choice in fields(config):
        require(bool(getattr(config, choice.name)), choice.name, "name at least one value")
