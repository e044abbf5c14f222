from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.draft_promise import DraftPromises, RequestRecord

CURVE = [0.8, 0.64, 0.512]


def promises() -> DraftPromises:
    return DraftPromises(fade=1.0 - 1 / 32, prior_trials=16.0, stale_rounds=100)


def test_a_request_of_which_nothing_is_known_is_like_the_others() -> None:
    known = promises()
    for survival in (0.9, 0.5):
        known.note_curve(RequestRecord(True), [survival], 0, 2)
    assert known.of(RequestRecord(True), 0, 0, 2) == [[0.9]]
    assert known.of(RequestRecord(True), 1, 0, 2) == [[0.5]]
    assert known.of(RequestRecord(True), 0, 0, 1) == [[0.9], [0.5]]


@given(st.integers(0, 40), st.floats(0.05, 0.95))
def test_acceptance_of_its_own_moves_what_a_request_promises_towards_it(
    num_blocks: int, share: float
) -> None:
    known, record = promises(), RequestRecord(True)
    known.note_curve(record, CURVE, 0, 1)
    for _ in range(num_blocks):
        known.note(record, 8, round(8 * share), 8 * 0.8)
    (curve,) = known.of(record, 0, 0, 1)
    if round(8 * share) / 8 < 0.8 and num_blocks:
        assert all(own < promised for own, promised in zip(curve, CURVE, strict=True))
    else:
        assert all(own >= promised * (1 - 1e-9) for own, promised in zip(curve, CURVE, strict=True))
    assert curve == sorted(curve, reverse=True)


def test_what_was_drafted_long_ago_says_nothing_any_more() -> None:
    known, record = promises(), RequestRecord(True)
    known.note_curve(record, CURVE, 0, 1)
    known.note_curve(RequestRecord(True), [0.1], 90, 1)
    assert known.of(record, 0, 100, 1) == [CURVE]
    assert known.of(record, 1, 101, 2) == [[0.1]]


@pytest.mark.parametrize(("num_requests", "kept"), [(1, 32), (8, 4), (64, 1)])
def test_few_requests_are_remembered_better(num_requests: int, kept: int) -> None:
    known, record = promises(), RequestRecord(True)
    for i in range(50):
        known.note_curve(record, [i / 50], i, num_requests)
    assert [curve[0] for curve in record.curves] == [i / 50 for i in range(50 - kept, 50)]


def test_a_request_that_goes_on_for_long_does_not_hide_the_others() -> None:
    known = promises()
    known.note_curve(RequestRecord(True), [0.123], 0, 2)
    long = RequestRecord(True)
    for i in range(200):
        known.note_curve(long, [0.9], i, 2)
    assert [0.123] in known.recent
