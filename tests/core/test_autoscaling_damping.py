from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.autoscaling_config import ReplicaLimits
from dspine_cluster.core.autoscaling_damping import Damping, step

LIMITS = ReplicaLimits(min_replicas=1, max_replicas=50, max_step_up=4, max_step_down=2)


def test_more_come_at_once_by_bounded_steps_with_a_pause_between() -> None:
    first = step(20.0, 4, 100.0, Damping(), LIMITS)
    assert (first.replicas, first.why) == (8, "steps are bounded")
    assert step(20.0, 8, 101.0, first.damping, LIMITS).replicas == 8
    assert step(20.0, 8, 105.0, first.damping, LIMITS).replicas == 12


def test_fewer_come_when_the_largest_need_of_a_while_is_less() -> None:
    damping = step(6.0, 6, 0.0, Damping(), LIMITS).damping
    early = step(2.0, 6, 59.0, damping, LIMITS)
    assert (early.replicas, early.why) == (6, "was needed a moment ago")
    assert step(2.0, 6, 61.0, early.damping, LIMITS).replicas == 4


def test_nothing_changes_within_the_hysteresis() -> None:
    assert step(4.07, 4, 0.0, Damping(), LIMITS, hysteresis=0.08).replicas == 4
    assert step(4.09, 4, 0.0, Damping(), LIMITS, hysteresis=0.08).replicas == 5
    assert step(3.93, 5, 0.0, Damping(), LIMITS, hysteresis=0.08).replicas == 5
    assert step(3.91, 5, 0.0, Damping(), LIMITS, hysteresis=0.08).replicas == 4


def test_what_drains_keeps_the_rest() -> None:
    held = step(1.0, 6, 0.0, Damping(), LIMITS, may_fall=False)
    assert (held.replicas, held.why) == (6, "others drain")


@given(st.floats(0, 100), st.floats(0, 100), st.integers(0, 60), st.booleans())
def test_steps_are_monotone_in_what_is_needed(one: float, other: float, current: int, may_fall: bool) -> None:
    low, high = (step(n, current, 0.0, Damping(), LIMITS, may_fall=may_fall) for n in sorted((one, other)))
    assert low.replicas <= high.replicas


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 30)), max_size=30))
def test_the_window_is_the_largest_need_of_the_hold(moves: list[tuple[float, float]]) -> None:
    limits = replace(LIMITS, down_hold_s=20.0)
    now_s, damping, seen = 0.0, Damping(), list[tuple[float, float]]()
    for needed, pause_s in moves:
        now_s += pause_s
        seen.append((now_s, needed))
        damping = step(needed, 5, now_s, damping, limits).damping
        assert max(n for _, n in damping.needs) == max(n for at, n in seen if now_s - at <= 20.0)
