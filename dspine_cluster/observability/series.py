"""Names of figures: that of a metric, then in braces the labels that tell its series apart, as in
`draft_fallback_total{reason=late}`. Values of labels hold neither commas nor equals signs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import inf


def series(name: str, labels: Mapping[str, str]) -> str:
    """The name of a figure."""
    if not labels:
        return name
    return f"{name}{{{','.join(f'{key}={value}' for key, value in labels.items())}}}"


@lru_cache(maxsize=4096)
def parse_series(figure: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The inverse: the metric's name, and the labels in order."""
    name, brace, rest = figure.partition("{")
    if not brace:
        return name, ()
    pairs = [pair.split("=") for pair in rest.removesuffix("}").split(",")]
    return name, tuple((key, value) for key, value in pairs)


def number(value: float) -> str:
    """A bound of a bucket, as Prometheus writes it."""
    return "+Inf" if value == inf else repr(float(value))
