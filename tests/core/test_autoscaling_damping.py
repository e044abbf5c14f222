from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.autoscaling_config import ReplicaLimits
from dspine_cluster.core.autoscaling_damping import Damping, step
from dspine_cluster.core.autoscaling_patience import Patience

LIMITS = ReplicaLimits(min_replicas=1, max_replicas=50, max_step_up=4, max_step_down=2)
SWINGING = replace(LIMITS, down_hold_s=20.0, down_cooldown_s=10.0)


def follow(needs: Iterable[float], start: int, limits: ReplicaLimits = SWINGING) -> list[int]:
    """One a second."""
    current, damping, numbers = start, Damping(), list[int]()
    for second, needed in enumerate(needs):
        taken = step(needed, current, float(second), damping, limits, hysteresis=0.08)
        current, damping = taken.replicas, taken.damping
        numbers.append(current)
    return numbers


def peaks(gaps: Iterable[int], low: float = 2.5, high: float = 3.5) -> list[float]:
    """The first after a moment."""
    return [low, high] + [need for gap in gaps for need in (*[low] * (gap - 1), high)]


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
        recent = [n for at, n in damping.needs if now_s - at <= 20.0]
        assert max(recent) == max(n for at, n in seen if now_s - at <= 20.0)


@given(st.integers(22, 100), st.data())
def test_noise_around_a_border_turns_the_number_once(first: int, data: st.DataObject) -> None:
    gaps = data.draw(st.lists(st.integers(1, 3 * first - 3), max_size=8))
    numbers = follow(peaks([first, *gaps]), start=3)
    assert [(a, b) for a, b in pairwise(numbers) if a != b] == [(3, 4), (4, 3), (3, 4)]


def test_the_same_noise_turns_a_number_that_learns_nothing_again_and_again() -> None:
    among_many = follow(peaks([30] * 10, low=29.5, high=30.5), start=30)
    assert sum(a != b for a, b in pairwise(among_many)) == 21


def test_a_fall_far_below_what_swung_is_followed_at_once_but_for_that() -> None:
    needs = peaks([60, 60, 60], low=8.5, high=9.5)
    numbers = follow([*needs, *[2.5] * 400], start=9)
    settled = len(needs) + 21 + 3 * 10
    assert numbers[len(needs) - 1] == 10
    assert numbers[settled] == 4
    assert numbers[-1] == 3


def test_a_number_from_the_start_that_was_never_needed_is_no_swing() -> None:
    numbers = follow([2.5, *peaks([60, 60, 60])], start=6)
    assert sum(b < a for a, b in pairwise([6, *numbers])) == 2 + 1


def test_a_reason_says_that_earlier_decreases_did_not_last() -> None:
    patience = Patience(100.0, spare=1)
    damping = replace(step(3.5, 4, 0.0, Damping(), LIMITS).damping, patience=patience)
    early = step(2.5, 4, 61.0, damping, LIMITS)
    assert (early.replicas, early.why) == (4, "decreases did not last")
    assert step(2.5, 4, 101.0, early.damping, LIMITS).replicas == 3


def test_nothing_is_kept_for_swings_where_nothing_is_needed() -> None:
    damping = replace(step(1.0, 1, 0.0, Damping(), LIMITS).damping, patience=Patience(600.0, spare=1))
    assert step(0.0, 1, 61.0, damping, replace(LIMITS, min_replicas=0)).replicas == 0


@given(st.lists(st.floats(0, 60), min_size=1, max_size=120), st.integers(1, 50))
def test_there_are_never_fewer_than_were_needed_lately_or_than_are_allowed(
    needs: list[float], start: int
) -> None:
    limits = replace(SWINGING, down_hold_s=5.0, down_cooldown_s=0.0)
    numbers = [start, *follow(needs, start, limits)]
    for second, (before, after) in enumerate(pairwise(numbers)):
        lately = max(needs[max(0, second - 5) : second + 1])
        assert 1 <= after <= 50
        assert after >= min(before, lately)
