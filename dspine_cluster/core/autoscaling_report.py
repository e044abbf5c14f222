"""Figures for autoscaling as numbers by name: all that replicas can tell Serve's controller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from math import inf, nan
from typing import Any

from dspine_cluster.core.autoscaling_stats import DrafterStats, RoundCurve, VerifierStats

_CURVE = "dspine_curve_"
_PREFIX = "dspine_"
"""Serve has figures of its own under plain names."""
_NOT_NUMBERS = {"replica_id", "curve", "is_draining"}
_MOST = 1e12
"""Of any figure: what is more, or less than none, was not measured."""
_MAY_BE_UNKNOWN = _PREFIX + "speculation_gain"
"""Infinite where nothing is known of drafts, as on verifiers that never had a drafter."""


def encode_verifier(stats: VerifierStats) -> dict[str, float]:
    """The numbers of a verifier that serves. Its id goes with them anyway."""
    curve = zip(stats.curve.num_requests, stats.curve.seconds, strict=True)
    return _numbers(stats) | {f"{_CURVE}{size}": seconds for size, seconds in curve}


def decode_verifier(replica_id: str, values: Mapping[str, float], more_age_s: float) -> VerifierStats | None:
    """What was encoded `more_age_s` ago; None where something is missing, as before there is anything to tell,
    or no number to count with."""
    curve = sorted((int(n.removeprefix(_CURVE)), s) for n, s in values.items() if n.startswith(_CURVE))
    names = _names(VerifierStats)
    if len(curve) < 2 or not _are_told(names, values):
        return None
    sizes, seconds = zip(*curve, strict=True)
    if not all(size >= 1 and 0 < second <= _MOST for size, second in curve):
        return None
    numbers: dict[str, Any] = {name: values[_PREFIX + name] for name in names}
    max_requests = int(numbers.pop("max_requests"))
    stats = VerifierStats(replica_id, curve=RoundCurve(sizes, seconds), max_requests=max_requests, **numbers)
    return replace(stats, age_s=stats.age_s + more_age_s)


def encode_drafter(stats: DrafterStats) -> dict[str, float]:
    """The numbers of a drafter that serves."""
    return _numbers(stats)


def decode_drafter(replica_id: str, values: Mapping[str, float], more_age_s: float) -> DrafterStats | None:
    """What was encoded `more_age_s` ago; None where something is missing or no number to count with."""
    names = _names(DrafterStats)
    if not _are_told(names, values):
        return None
    numbers: dict[str, Any] = {name: values[_PREFIX + name] for name in names}
    stats = DrafterStats(replica_id, **numbers)
    return replace(stats, age_s=stats.age_s + more_age_s)


def _names(kind: type[VerifierStats] | type[DrafterStats]) -> list[str]:
    return [field.name for field in fields(kind) if field.name not in _NOT_NUMBERS]


def _are_told(names: list[str], values: Mapping[str, float]) -> bool:
    return all(_is_figure(_PREFIX + name, values.get(_PREFIX + name, nan)) for name in names)


def _is_figure(name: str, value: float) -> bool:
    return 0 <= value <= _MOST or (name == _MAY_BE_UNKNOWN and value == inf)


def _numbers(stats: VerifierStats | DrafterStats) -> dict[str, float]:
    return {_PREFIX + name: float(getattr(stats, name)) for name in _names(type(stats))}
