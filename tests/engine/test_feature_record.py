from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.engine.feature_record import FeatureRecord
from dspine_cluster.types import PAGE_TOKENS

PAGES = np.array([4, 1, 3, 0, 2, 7], np.int32)


def slots_of(positions: range) -> np.ndarray:
    return np.array([PAGES[p // PAGE_TOKENS] * PAGE_TOKENS + p % PAGE_TOKENS for p in positions], np.int64)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30), st.booleans()), max_size=12), st.data())
def test_features_start_behind_the_last_position_that_a_pass_left_out(
    passes: list[tuple[int, int, bool]], data: st.DataObject
) -> None:
    record, is_there = FeatureRecord(8), [True] * 96
    for start, length, with_features in passes:
        positions = range(start, start + length)
        record.note(slots_of(positions), is_there=with_features)
        is_there[start : start + length] = [with_features] * length
    end = data.draw(st.integers(0, 96))
    expected = next((p + 1 for p in reversed(range(end)) if not is_there[p]), 0)
    assert record.start_before(PAGES, end) == expected


def test_a_copied_page_lacks_what_its_source_lacks() -> None:
    record = FeatureRecord(8)
    record.note(slots_of(range(20, 22)), is_there=False)
    record.copy_page(1, 7)
    assert record.start_before(np.array([4, 7], np.int32), 32) == 22
    record.copy_page(4, 7)
    assert record.start_before(np.array([4, 7], np.int32), 32) == 0


def test_a_page_that_is_completed_lacks_what_both_lack() -> None:
    record, pages = FeatureRecord(8), np.array([7], np.int32)
    record.note(np.arange(4 * 16 + 2, 4 * 16 + 6), is_there=False)
    record.note(np.arange(7 * 16 + 4, 7 * 16 + 9), is_there=False)
    assert record.complete_page(4, 7) == [6, 7, 8]
    assert (record.start_before(pages, 16), record.start_before(pages, 4)) == (6, 0)
    assert record.start_before(PAGES, 16) == 6
    assert not record.complete_page(4, 7)


def test_there_are_no_gaps_until_features_are_left_out() -> None:
    record = FeatureRecord(8)
    record.note(slots_of(range(20)), is_there=True)
    assert not record.has_gaps
    record.note(slots_of(range(20, 22)), is_there=False)
    assert record.has_gaps
