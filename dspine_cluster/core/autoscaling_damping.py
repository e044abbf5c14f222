"""From what is needed to a number of replicas that does not swing: bounds, steps, cooldowns, and a window."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf

from dspine_cluster.core.autoscaling_config import ReplicaLimits


@dataclass(frozen=True, slots=True)
class Damping:
    """What one deployment's number has been through."""

    raised_at_s: float = -inf
    changed_at_s: float = -inf
    needs: tuple[tuple[float, float], ...] = ()
    """(time, needed replicas), only those that no later one exceeds."""


@dataclass(frozen=True, slots=True)
class Step:
    """The number to have from now on."""

    replicas: int
    damping: Damping
    why: str
    """Why it is not what is needed; empty where it is."""


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
        why = f"bounds are {floor} to {limits.max_replicas}"
        return Step(bounded, Damping(now_s, now_s, held.needs), why)
    up = min(limits.max_replicas, ceil(needed - hysteresis))
    if up > current:
        return _raise(up, current, now_s, held, limits)
    down = max(floor, ceil(max(need for _, need in held.needs) + hysteresis))
    if down < current:
        return _lower(down, current, now_s, held, limits, may_fall)
    return Step(current, held, "" if ceil(needed + hysteresis) >= current else "was needed a moment ago")


def _raise(up: int, current: int, now_s: float, held: Damping, limits: ReplicaLimits) -> Step:
    if now_s - held.raised_at_s < limits.up_cooldown_s:
        return Step(current, held, "cools down after an increase")
    most = current + max(limits.max_step_up, current // 2)
    return Step(min(up, most), Damping(now_s, now_s, held.needs), "steps are bounded" if up > most else "")


def _lower(
    down: int, current: int, now_s: float, held: Damping, limits: ReplicaLimits, may_fall: bool
) -> Step:
    if not may_fall:
        return Step(current, held, "others drain")
    if now_s - held.changed_at_s < limits.down_cooldown_s:
        return Step(current, held, "cools down after a change")
    least = current - limits.max_step_down
    after = Damping(held.raised_at_s, now_s, held.needs)
    return Step(max(down, least), after, "steps are bounded" if down < least else "")
