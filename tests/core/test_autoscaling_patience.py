from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.autoscaling_patience import Patience

HOLD_S = 40.0


def swing(patience: Patience, at_s: float, lasted_s: float, *, low: int = 3, high: int = 4) -> Patience:
    lowered = patience.lowered(high, at_s, HOLD_S)
    return lowered.raised(low, high, at_s + lasted_s, HOLD_S)


def test_a_decrease_that_did_not_last_makes_the_next_wait_for_three_times_what_would_have_been_enough() -> (
    None
):
    once = swing(Patience(), 100.0, 49.0)
    assert (once.hold_s, once.spare) == (3 * (40 + 49), 1)
    assert swing(Patience(hold_s=50.0), 400.0, 3.0).hold_s == 3 * (50 + 3)


@given(st.lists(st.tuples(st.floats(0, 1000), st.floats(0, 1000)), max_size=20))
def test_no_decrease_waits_longer_than_16_times_what_is_configured(swings: list[tuple[float, float]]) -> None:
    now_s, patience = 0.0, Patience()
    for pause_s, lasted_s in swings:
        now_s += pause_s
        patience = swing(patience, now_s, lasted_s)
        now_s += lasted_s
        assert 0 <= patience.hold_s <= 16 * HOLD_S
        assert patience.spare in (0, 1)


def test_decreases_that_last_end_it() -> None:
    patience = swing(swing(Patience(), 0.0, 10.0), 200.0, 10.0)
    holds_s = [patience.hold_s]
    for i in range(1, 6):
        patience = patience.lowered(10, 1000.0 * i, HOLD_S)
        holds_s.append(patience.hold_s)
    assert holds_s == [480, 480, 240, 120, 60, 0]
    assert patience.spare == 0


def test_an_increase_long_after_a_decrease_takes_nothing_back() -> None:
    before = swing(Patience(), 0.0, 100.0)
    assert before.hold_s == 420
    assert swing(before, 1000.0, 320.1).hold_s == 210


@pytest.mark.parametrize(
    ("low", "high", "is_swing"), [(3, 4, True), (9, 10, True), (10, 11, False), (90, 100, True)]
)
def test_among_many_one_more_or_less_is_no_swing(low: int, high: int, is_swing: bool) -> None:
    assert (swing(Patience(), 0.0, 10.0, low=low, high=high).spare > 0) == is_swing


def test_what_came_back_is_what_had_been_there_and_not_all_that_demand_brings() -> None:
    lowered = Patience().lowered(6, 0.0, HOLD_S).lowered(5, 20.0, HOLD_S)
    assert lowered.raised(4, 20, 30.0, HOLD_S).spare == 2
    assert lowered.raised(4, 5, 30.0, HOLD_S).spare == 1


def test_a_second_step_of_an_increase_is_no_second_swing() -> None:
    once = swing(Patience(), 0.0, 10.0)
    assert once.raised(4, 8, 15.0, HOLD_S) == once


def test_replicas_that_come_back_from_none_had_not_been_needed() -> None:
    assert swing(Patience(), 0.0, 10.0, low=0, high=1).hold_s == 0


def test_a_number_that_somebody_else_changed_is_no_swing() -> None:
    lowered = Patience().lowered(3, 0.0, HOLD_S)
    assert lowered.raised(5, 6, 10.0, HOLD_S).hold_s == 0
