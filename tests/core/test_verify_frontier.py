from __future__ import annotations

import pytest

from dspine_cluster.core.verify_frontier import Frontier


def frontier(*conditionals: list[float]) -> Frontier:
    begun = Frontier(
        [len(rows) for rows in conditionals], [range(len(rows)) for rows in conditionals], conditionals
    )
    begun.begin()
    return begun


def test_the_likeliest_are_taken_and_what_they_give_is_told() -> None:
    rows = frontier([0.9, 0.8], [0.5, 0.9], [])
    num_taken, gain, time = rows.take(2, 1.0, 3.0, 0.5, is_certain=True)
    assert (rows.lengths, num_taken, time) == ([2, 0, 0], 2, 4.0)
    assert gain == pytest.approx(1.0 + 0.9 + 0.72)
    assert rows.take(9, gain, time, 0.0)[0] == 2


def test_what_is_not_worth_its_time_is_not_taken_unless_that_is_certain() -> None:
    rows = frontier([0.9, 0.1], [0.5])
    num_taken, gain, time = rows.take(9, 1.0, 1.0, 0.5)
    assert (rows.lengths, num_taken, gain, time) == ([1, 0], 1, 1.9, 1.5)
    assert rows.take(9, gain, time, 0.5, is_certain=True)[0] == 2


def test_of_equals_the_first_block_is_taken_with_what_is_certain_behind_it() -> None:
    rows = frontier([0.5], [1.0, 1.0, 0.5], [1.0])
    rows.take(2, 0.0, 1.0, 0.0)
    assert rows.lengths == [0, 2, 0]
    rows.take(2, 0.0, 1.0, 0.0)
    assert rows.lengths == [1, 2, 1]


def test_what_the_likeliest_that_were_looked_at_give_counts_no_row_behind_them() -> None:
    rows = frontier([0.9, 1.0], [0.5], [0.5])
    assert [rows.gain_of(count) for count in (1, 2, 9)] == pytest.approx([0.9, 1.4, 1.9])


def test_what_is_ahead_goes_by_expectation_behind_the_rows_that_were_looked_at() -> None:
    rows = frontier([0.8, 0.1, 0.1], [0.4])
    assert rows.ahead([0.9, 0.5, 0.5], 0.0) == pytest.approx([-0.8, -0.4, -0.4, -0.2])
    assert rows.ahead([0.9, 0.5, 0.5], 0.3) == pytest.approx([-0.8, -0.4, -0.4])
