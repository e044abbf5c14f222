"""From what is needed to a number of replicas that does not swing: bounds, steps, cooldowns, and a window."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import ceil, inf

from dspine_cluster.core.autoscaling_config import ReplicaLimits


@dataclass(frozen=True, slots=True)
class Damping:
    """What one deployment's number has been through."""

    raised_at_s: float = -inf
    changed_at_s: float = -inf
    needs: tuple[tuple[float, float], ...] = ()
    """(time, needed replicas), only those that no later one exceeds."""


class Why(StrEnum):
    """Why a number is what it is."""

    NEEDED = "as needed"
    BOUNDS = "bounds"
    STEPS = "steps are bounded"
    RAISED = "cools down after an increase"
    CHANGED = "cools down after a change"
    DRAINING = "others drain"
    RECENT = "was needed a moment ago"
    IDLE = "idle"
    STALE = "too little is known"


@dataclass(frozen=True, slots=True)
class Step:
    """The number to have from now on."""

    replicas: int
    damping: Damping
    why: Why


def step(
    needed: float,
    current: int,
    now_s: float,
    damping: Damping,
    limits: ReplicaLimits,
    *,
    hysteresis: float = 0.0,
    may_fall: bool = True,
    floor: int = 0,
) -> Step:
    """Go from `current` towards `needed`, which may be a fraction.

    More replicas come at once, by bounded steps. Fewer come only once the largest need of the last `down_hold_s` is
    less, and nothing else changes; `may_fall` False keeps them, as while others still drain.
    """
    floor = max(floor, limits.min_replicas)
    needs = tuple(
        (at, need) for at, need in damping.needs if need > needed and now_s - at <= limits.down_hold_s
    )
    held = Damping(damping.raised_at_s, damping.changed_at_s, (*needs, (now_s, needed)))
    bounded = min(limits.max_replicas, max(floor, current))
    if bounded != current:
        return Step(bounded, Damping(now_s, now_s, held.needs), Why.BOUNDS)
    up = min(limits.max_replicas, _whole(needed - hysteresis, limits))
    if up > current:
        return _raise(up, current, now_s, held, limits)
    down = max(floor, _whole(max(need for _, need in held.needs) + hysteresis, limits))
    if down < current:
        return _lower(down, current, now_s, held, limits, may_fall)
    return Step(current, held, Why.NEEDED if _whole(needed + hysteresis, limits) >= current else Why.RECENT)


def _whole(needed: float, limits: ReplicaLimits) -> int:
    """Rounded up; what is beyond the bounds, as an infinite need, is as good as one more than they allow."""
    return ceil(min(needed, limits.max_replicas + 1.0))


def _raise(up: int, current: int, now_s: float, held: Damping, limits: ReplicaLimits) -> Step:
    if now_s - held.raised_at_s < limits.up_cooldown_s:
        return Step(current, held, Why.RAISED)
    most = current + max(limits.max_step_up, current // 2)
    return Step(min(up, most), Damping(now_s, now_s, held.needs), Why.STEPS if up > most else Why.NEEDED)


def _lower(
    down: int, current: int, now_s: float, held: Damping, limits: ReplicaLimits, may_fall: bool
) -> Step:
    if not may_fall:
        return Step(current, held, Why.DRAINING)
    if now_s - held.changed_at_s < limits.down_cooldown_s:
        return Step(current, held, Why.CHANGED)
    least = current - limits.max_step_down
    after = Damping(held.raised_at_s, now_s, held.needs)
    return Step(max(down, least), after, Why.STEPS if down < least else Why.NEEDED)
