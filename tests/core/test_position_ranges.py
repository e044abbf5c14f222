"""Ranges of positions behave as the set that they stand for."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.position_ranges import PositionRanges

steps = st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.integers(1, 12)), max_size=20)


def build(operations: list[tuple[bool, int, int]]) -> tuple[PositionRanges, set[int]]:
    """The ranges after additions (False) and removals (True), and the set they stand for."""
    ranges, positions = PositionRanges(), set[int]()
    for is_drop, start, count in operations:
        if is_drop:
            ranges.drop_before(start)
            positions = {p for p in positions if p >= start}
        else:
            ranges.add(start, start + count)
            positions |= set(range(start, start + count))
    return ranges, positions


@given(steps)
def test_ranges_hold_exactly_the_positions_and_are_disjoint(operations: list[tuple[bool, int, int]]) -> None:
    ranges, positions = build(operations)
    assert [p for start, end in ranges.ranges for p in range(start, end)] == sorted(positions)
    assert all(left[1] < right[0] for left, right in zip(ranges.ranges, ranges.ranges[1:], strict=False))
    assert ranges.end == max(positions, default=-1) + 1
    assert {p for p in range(60) if p in ranges} == positions


@given(steps, st.integers(0, 60))
def test_runs_and_gaps_reach_back_to_the_first_change(
    operations: list[tuple[bool, int, int]], end: int
) -> None:
    ranges, positions = build(operations)
    run = gap = end
    while run - 1 in positions:
        run -= 1
    while gap > 0 and gap - 1 not in positions:
        gap -= 1
    assert ranges.run_before(end) == run
    assert ranges.gap_before(end) == gap


spans = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), max_size=8)


@given(spans, spans)
def test_what_is_removed_is_missing_and_nothing_else_is(
    added: list[tuple[int, int]], removed: list[tuple[int, int]]
) -> None:
    ranges, positions = build([(False, start, count) for start, count in added])
    for start, count in removed:
        ranges.remove(start, start + count)
        positions -= set(range(start, start + count))
        assert [p for low, high in ranges.ranges for p in range(low, high)] == sorted(positions)
        assert all(left[1] < right[0] for left, right in zip(ranges.ranges, ranges.ranges[1:], strict=False))


@given(steps, st.integers(0, 60), st.integers(0, 60))
def test_gaps_are_the_missing_positions_of_a_range_last_run_first(
    operations: list[tuple[bool, int, int]], start: int, end: int
) -> None:
    ranges, positions = build(operations)
    gaps = list(ranges.gaps(start, end))
    assert [p for low, high in reversed(gaps) for p in range(low, high)] == [
        p for p in range(start, end) if p not in positions
    ]
    assert all(low < high for low, high in gaps)
    assert all(newer[0] > older[1] for newer, older in pairwise(gaps))


@given(steps, st.integers(0, 60), st.integers(0, 20))
def test_what_is_missing_after_is_told_where_it_is_one_run(
    operations: list[tuple[bool, int, int]], start: int, count: int
) -> None:
    ranges, positions = build(operations)
    end = start + count
    first = ranges.missing_after(start, end)
    if first is not None:
        assert start <= first <= end
        assert {p for p in range(start, end) if p not in positions} == set(range(first, end))
    elif count:
        assert any(p not in positions for p in range(start, end) if p < ranges.end) or ranges.end > end


@given(steps, st.integers(0, 60), st.integers(0, 20))
def test_a_run_is_covered_if_none_of_it_is_missing(
    operations: list[tuple[bool, int, int]], start: int, count: int
) -> None:
    ranges, positions = build(operations)
    assert ranges.covers(start, start + count) == (set(range(start, start + count)) <= positions)
