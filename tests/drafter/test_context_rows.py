"""Contexts in columns: whatever they say is there is in its slot, as when each context is asked by itself."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dspine_cluster.core.draft_context import DraftContextTable
from dspine_cluster.drafter.client import NO_ROW, RequestKey
from dspine_cluster.drafter.context_rows import ContextRows

Contents = dict[int, tuple[int, int]]
"""(uid, position) of what stands in each slot."""


def page_keys(uid: int, num_pages: int) -> list[bytes]:
    return [bytes([uid, number]) * 8 for number in range(num_pages)]


class Both:
    """The same requests in columns, and in a table that is asked for each run by itself."""

    def __init__(self, num_pages: int, max_context_tokens: int) -> None:
        self.table, self.plain = (
            DraftContextTable[RequestKey](num_pages, max_context_tokens) for _ in range(2)
        )
        self.columns = ContextRows(self.table)
        self.contents: Contents = {}
        self.rows: dict[int, int] = {}

    def toggle(self, uid: int, num_keys: int) -> None:
        key = RequestKey(0, uid)
        if uid in self.rows:
            self.columns.close(self.rows.pop(uid))
            for table in (self.table, self.plain):
                table.close(key)
        else:
            for table in (self.table, self.plain):
                table.open(key, page_keys(uid, num_keys))
            self.rows[uid] = self.columns.open(key)

    def place(self, runs: list[tuple[int, int, int]]) -> None:
        """Runs of (uid, start, count)."""
        rows = [self.rows.get(uid, NO_ROW) for uid, _, _ in runs]
        starts, counts = (np.array([run[i] for run in runs], np.int64) for i in (1, 2))
        sent = [(uid, start + i) for uid, start, count in runs for i in range(count)]
        places = self.columns.place(rows, starts, counts)
        kept = range(len(sent)) if places.kept is None else places.kept.tolist()
        for index, position, slot in zip(kept, places.positions.tolist(), places.slots.tolist(), strict=True):
            assert sent[index][1] == position
            self.contents[slot] = sent[index]

    def check(self, uids: list[int], positions: list[int]) -> None:
        """Whether drafts at `positions` see what stands there."""
        pages, is_there = self.columns.find([self.rows[uid] for uid in uids], np.array(positions))
        for i, (uid, position) in enumerate(zip(uids, positions, strict=True)):
            usable = self.table.usable(RequestKey(0, uid), position)
            assert is_there[i] == (usable is not None)
            if usable is None:
                continue
            assert (usable.start, usable.first_page) == (pages.starts[i], pages.first_pages[i])
            table = pages.page_table[i].tolist()
            for seen in range(usable.start, position):
                slot = table[seen // 16 - usable.first_page] * 16 + seen % 16
                assert self.contents[slot] == (uid, seen)
        self.table.check_integrity()


uids = st.integers(0, 5)


@given(st.integers(4, 40), st.integers(17, 200), st.data())
@settings(max_examples=60, deadline=None)
def test_contexts_are_where_the_columns_say(
    num_pages: int, max_context_tokens: int, data: st.DataObject
) -> None:
    both = Both(num_pages, max_context_tokens)
    ends = dict.fromkeys(range(6), 0)
    for _ in range(data.draw(st.integers(1, 15))):
        if data.draw(st.integers(0, 3)) == 0:
            uid = data.draw(uids)
            if uid not in both.rows:
                ends[uid] = 0
            both.toggle(uid, data.draw(st.integers(0, 3)) if data.draw(st.booleans()) else 0)
            continue
        runs = []
        for uid in data.draw(st.lists(uids, min_size=1, max_size=6)):
            skipped = data.draw(st.sampled_from((0, 0, 0, 0, 3, -2)))
            start, count = max(0, ends[uid] + skipped), data.draw(st.integers(1, 40))
            runs.append((uid, start, count))
            ends[uid] = start + count
        both.place(runs)
        present = [uid for uid in both.rows if ends[uid]]
        if present:
            both.check(present, [max(0, ends[u] - data.draw(st.sampled_from((0, 0, 1)))) for u in present])


def test_requests_that_grow_together_take_pages_as_one_at_a_time() -> None:
    both = Both(num_pages=100, max_context_tokens=1000)
    for uid in range(6):
        both.toggle(uid, 0)
    for start in range(0, 140, 7):
        both.place([(uid, start, 7) for uid in range(6)])
        for uid in range(6):
            both.plain.place(RequestKey(0, uid), start, start + 7)
    both.check(list(range(6)), [140] * 6)
    for uid in range(6):
        assert both.table.newest_run(RequestKey(0, uid)) == both.plain.newest_run(RequestKey(0, uid))


def test_a_run_of_nobody_gets_no_place_and_shifts_nobody_else_s_rows() -> None:
    both = Both(num_pages=10, max_context_tokens=100)
    both.toggle(1, 0)
    both.place([(1, 0, 3)])
    both.place([(5, 0, 4), (1, 3, 2), (4, 9, 1)])
    both.check([1], [5])


def test_columns_hold_more_requests_and_pages_than_they_began_with() -> None:
    both = Both(num_pages=600, max_context_tokens=2000)
    uids = list(range(150))
    for uid in uids:
        both.toggle(uid, 0)
    for start in range(0, 40, 8):
        both.place([(uid, start, 8) for uid in uids])
    both.check(uids, [40] * 150)
    both.place([(3, 40, 1500)])
    both.place([(3, 1540, 5)])
    both.check([3, 4], [1545, 40])


def test_a_context_whose_only_page_is_shared_is_empty_when_there_is_no_other() -> None:
    """Giving up its page frees nothing."""
    table = DraftContextTable[RequestKey](num_pages=2, max_context_tokens=100)
    columns = ContextRows(table)
    keys = [RequestKey(0, uid) for uid in range(3)]

    def open_row(key: RequestKey, num_keys: int) -> int:
        table.open(key, page_keys(0, num_keys))
        return columns.open(key)

    first, other = open_row(keys[0], 1), open_row(keys[1], 0)
    columns.place([first, other], np.array([0, 0]), np.array([16, 1]))
    second = open_row(keys[2], 1)
    assert columns.find([second], np.array([16]))[1]
    places = columns.place([second], np.array([16]), np.array([4]))
    assert not len(places.slots)
    assert columns.find([first, other, second], np.array([16, 1, 20]))[1].tolist() == [True, True, False]
    table.check_integrity()
