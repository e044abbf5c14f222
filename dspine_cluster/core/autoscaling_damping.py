"""From what is needed to a number of replicas that does not swing: bounds, steps, cooldowns, and a window."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import ceil, inf

from dspine_cluster.core.autoscaling_config import ReplicaLimits
from dspine_cluster.core.autoscaling_patience import Patience


@dataclass(frozen=True, slots=True)
class Damping:
    """What one deployment's number has been through."""

    raised_at_s: float = -inf
    changed_at_s: float = -inf
    needs: tuple[tuple[float, float], ...] = ()
    """(time, needed replicas), only those that no later one exceeds."""
    patience: Patience = field(default_factory=Patience)


class Why(StrEnum):
    """Why a number is what it is."""

    NEEDED = "as needed"
    BOUNDS = "bounds"
    STEPS = "steps are bounded"
    RAISED = "cools down after an increase"
    CHANGED = "cools down after a change"
    DRAINING = "others drain"
    RECENT = "was needed a moment ago"
    SWUNG = "decreases did not last"
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
    less, of longer where such decreases did not last, and nothing else changes; `may_fall` False keeps them, as while
    others still drain.
    """
    floor = max(floor, limits.min_replicas)
    patience = damping.patience
    window_s = max(limits.down_hold_s, patience.hold_s)
    needs = tuple((at, need) for at, need in damping.needs if need > needed and now_s - at <= window_s)
    held = replace(damping, needs=(*needs, (now_s, needed)))
    bounded = min(limits.max_replicas, max(floor, current))
    if bounded != current:
        return Step(bounded, replace(held, raised_at_s=now_s, changed_at_s=now_s), Why.BOUNDS)
    up = min(limits.max_replicas, _whole(needed - hysteresis, limits))
    if up > current:
        return _raise(up, current, now_s, held, limits)
    recent = max(need for at, need in held.needs if now_s - at <= limits.down_hold_s)
    least = max(floor, _whole(recent + hysteresis, limits))
    longest = max(floor, _whole(held.needs[0][1] + hysteresis, limits))
    # Where nothing is needed at all, that is no swing.
    down = min(longest, least + patience.spare) if recent > 0 else least
    if down < current:
        return _lower(down, current, now_s, held, limits, may_fall)
    if _whole(needed + hysteresis, limits) >= current:
        return Step(current, held, Why.NEEDED)
    return Step(current, held, Why.SWUNG if least < current else Why.RECENT)


def _whole(needed: float, limits: ReplicaLimits) -> int:
    """Rounded up; what is beyond the bounds, as an infinite need, is as good as one more than they allow."""
    return ceil(min(needed, limits.max_replicas + 1.0))


def _raise(up: int, current: int, now_s: float, held: Damping, limits: ReplicaLimits) -> Step:
    if now_s - held.raised_at_s < limits.up_cooldown_s:
        return Step(current, held, Why.RAISED)
    most = current + max(limits.max_step_up, current // 2)
    patience = held.patience.raised(current, up, now_s, limits.down_hold_s)
    after = Damping(now_s, now_s, held.needs, patience)
    return Step(min(up, most), after, Why.STEPS if up > most else Why.NEEDED)


def _lower(
    down: int, current: int, now_s: float, held: Damping, limits: ReplicaLimits, may_fall: bool
) -> Step:
    if not may_fall:
        return Step(current, held, Why.DRAINING)
    if now_s - held.changed_at_s < limits.down_cooldown_s:
        return Step(current, held, Why.CHANGED)
    least = current - limits.max_step_down
    patience = held.patience
    if held.raised_at_s > -inf:  # replicas that were there from the start may never have been needed
        patience = patience.lowered(current, now_s, limits.down_hold_s)
    after = replace(held, changed_at_s=now_s, patience=patience)
    return Step(max(down, least), after, Why.STEPS if down < least else Why.NEEDED)
