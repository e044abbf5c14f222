from __future__ import annotations

from math import inf

import pytest

from dspine_cluster.core.request_length import RequestLengths


def test_before_any_has_ended_requests_may_run_for_ever() -> None:
    assert RequestLengths().passes_left == inf
    lengths = RequestLengths()
    lengths.note(0)
    assert lengths.passes_left == inf


def test_of_equal_requests_half_is_left_on_average() -> None:
    lengths = RequestLengths()
    for _ in range(20):
        lengths.note(100)
    assert lengths.passes_left == pytest.approx(50.0)


def test_long_requests_among_short_ones_are_those_that_are_met() -> None:
    lengths = RequestLengths()
    for _ in range(500):
        lengths.note(10)
        lengths.note(1000)
    assert lengths.passes_left == pytest.approx(495.0, rel=0.03)


def test_the_last_requests_count_most() -> None:
    lengths = RequestLengths()
    for num_passes in (1000, 10):
        for _ in range(1000):
            lengths.note(num_passes)
    assert lengths.passes_left == pytest.approx(5.0, rel=0.03)
