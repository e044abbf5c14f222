"""Rows of a page table are requests' pages, and slots are where they say."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.page_pool import slot_of
from dspine_cluster.engine.page_table import PageTable

pages = st.lists(st.integers(1, 500), max_size=150)


@given(st.lists(st.tuples(st.integers(0, 3), pages, st.booleans(), st.integers(0, 9)), max_size=8))
def test_rows_are_the_pages_written_last_and_zero_beyond(
    writes: list[tuple[int, list[int], bool, int]],
) -> None:
    table = PageTable(4)
    written: dict[int, list[int]] = {}
    for slot, own, goes_on, num_replaced in writes:
        kept = written.get(slot, []) if goes_on else []
        kept = kept[: max(0, len(kept) - num_replaced)]
        written[slot] = kept + own
        table.write(slot, written[slot], len(kept))
    for slot in range(4):
        own = written.get(slot, [])
        assert table.rows[slot].tolist() == own + [0] * (table.rows.shape[1] - len(own))


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(1, 20)), min_size=1, max_size=6),
    st.integers(0, 5),
    st.integers(1, 80),
)
def test_slots_are_those_of_each_position(
    runs: list[tuple[int, int, int]], num_kept: int, num_more: int
) -> None:
    table = PageTable(3)
    rows: list[list[int]] = []
    for row in range(3):
        table.write(row, [99] * num_kept + [98] * num_more)
        rows.append([99] * num_kept + list(range(100 * row + 100, 100 * row + 105)))
        table.write(row, rows[row][:-1], num_kept)
        table.write(row, rows[row], len(rows[row]) - 1)
    numbers, starts, lengths = np.array(runs).T
    positions, slots = table.places(numbers, starts, lengths)
    expected = [(row, position) for row, start, length in runs for position in range(start, start + length)]
    assert positions.tolist() == [position for _, position in expected]
    assert slots.tolist() == [slot_of(rows[row], position) for row, position in expected]
