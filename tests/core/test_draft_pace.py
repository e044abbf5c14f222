from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.draft_pace import DraftPace


def make_pace() -> DraftPace:
    return DraftPace(late_factor=2.0, first_deadline_s=1.0, max_failures=3, rest_s=5.0)


def known_pace() -> DraftPace:
    """Of a drafter that has answered."""
    pace = make_pace()
    pace.note_draft(0.01, late=False)
    return pace


def test_rounds_wait_for_a_new_drafter_no_longer_than_a_plain_step() -> None:
    assert make_pace().deadline_s(plain_step_s=0.03) == 0.03


def test_a_new_drafter_fails_only_when_it_stays_silent_beyond_the_first_deadline() -> None:
    pace = make_pace()
    for step in range(100):
        pace.note_failure(10.0 + 0.0099 * step)
    assert not pace.is_resting(11.0)
    for _ in range(3):
        pace.note_failure(11.1)
    assert pace.is_resting(11.1)


@given(st.lists(st.floats(1e-4, 1.0), min_size=1), st.floats(0.0, 1.0))
def test_a_draft_is_never_late_before_a_plain_step_has_passed(
    times: list[float], plain_step_s: float
) -> None:
    pace = make_pace()
    for taken_s in times:
        pace.note_draft(taken_s, late=False)
    assert pace.deadline_s(plain_step_s) >= plain_step_s


def test_a_slower_drafter_gets_a_later_deadline_in_the_end() -> None:
    pace = make_pace()
    pace.note_draft(0.01, late=False)
    for _ in range(50):
        pace.note_draft(0.1, late=True)
    assert pace.deadline_s(0.0) == pytest.approx(0.2, rel=0.01)


def test_repeated_failures_bring_a_rest_and_it_ends() -> None:
    pace = known_pace()
    for _ in range(3):
        assert not pace.is_resting(10.0)
        pace.note_failure(10.0)
    assert pace.is_resting(14.9)
    assert not pace.is_resting(15.0)


def test_one_failure_after_a_rest_brings_the_next() -> None:
    pace = known_pace()
    for _ in range(3):
        pace.note_failure(0.0)
    pace.note_failure(6.0)
    assert pace.is_resting(10.0)


def test_a_draft_in_time_forgives_earlier_failures() -> None:
    pace = known_pace()
    pace.note_failure(0.0)
    pace.note_failure(0.0)
    pace.note_draft(0.01, late=False)
    pace.note_failure(0.0)
    assert not pace.is_resting(0.0)
