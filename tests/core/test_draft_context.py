"""The draft context table: whatever it says is usable is really there, and the newest survives pressure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dspine_cluster.core.draft_context import DraftContextTable

keys = st.sampled_from("abcd")


class Slots:
    """What stands in each slot of a pool: the (request, position) that was written there last."""

    def __init__(self, table: DraftContextTable[str]) -> None:
        self.table = table
        self.contents: dict[int, tuple[str, int]] = {}

    def write(self, key: str, start: int, end: int) -> int:
        """Place and write the rows; the first position that found room."""
        placement = self.table.place(key, start, end)
        assert start <= placement.start <= end
        assert len(placement.slots) == end - placement.start
        for position, slot in enumerate(placement.slots, placement.start):
            self.contents[slot] = (key, position)
        return placement.start

    def read(self, key: str, anchor_position: int) -> list[int] | None:
        """Positions of the usable context, each found in its slot."""
        usable = self.table.usable(key, anchor_position)
        if usable is None:
            return None
        positions = list(range(usable.start, anchor_position))
        for position in positions:
            page = usable.pages[position // 16 - usable.first_page]
            assert self.contents[page * 16 + position % 16] == (key, position)
        return positions


class TableMachine(RuleBasedStateMachine):
    """Several requests whose features come and go in any order of ranges."""

    @initialize(num_pages=st.integers(1, 12), max_context_tokens=st.integers(1, 100))
    def start(self, num_pages: int, max_context_tokens: int) -> None:
        self.table = DraftContextTable[str](num_pages, max_context_tokens)
        self.slots = Slots(self.table)
        self.newest: dict[str, int] = {}

    @rule(key=keys)
    def open_or_close(self, key: str) -> None:
        if key in self.table:
            self.table.close(key)
            self.newest.pop(key, None)
        else:
            self.table.open(key)

    @precondition(lambda self: len(self.table) > 0)
    @rule(data=st.data(), start=st.integers(0, 150), count=st.integers(1, 60))
    def place(self, data: st.DataObject, start: int, count: int) -> None:
        key = data.draw(st.sampled_from([key for key in "abcd" if key in self.table]))
        end = start + count
        had_room = self.table.has_room(key)
        first = self.slots.write(key, start, end)
        if end > self.newest.get(key, 0):
            assert (first < end) == had_room, "the newest row finds room exactly when there is some"
            if first < end:
                self.newest[key] = end

    @invariant()
    def what_is_usable_is_there(self) -> None:
        if not hasattr(self, "table"):
            return
        self.table.check_integrity()
        for key, newest in self.newest.items():
            positions = self.slots.read(key, newest)
            assert positions, "the newest position was lost"
            assert len(positions) <= self.table._max_context_tokens


TestTableMachine = TableMachine.TestCase


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(1, 80)), min_size=1, max_size=20))
def test_without_pressure_nothing_is_lost_and_the_run_is_as_long_as_it_can_be(
    ranges: list[tuple[int, int]],
) -> None:
    table = DraftContextTable[str](100, 10_000)
    slots = Slots(table)
    table.open("a")
    positions: set[int] = set()
    for start, count in ranges:
        assert slots.write("a", start, start + count) == start
        positions |= set(range(start, start + count))
    for anchor in range(1, 290):
        run = anchor
        while run - 1 in positions:
            run -= 1
        assert slots.read("a", anchor) == (list(range(run, anchor)) or None)
        if anchor - 1 not in positions:
            start, end = table.missing("a", anchor)
            assert end == anchor
            assert positions.isdisjoint(range(start, end))
            assert start == 0 or start - 1 in positions


def test_an_anchor_at_position_0_has_an_empty_context() -> None:
    table = DraftContextTable[str](1, 16)
    table.open("a")
    usable = table.usable("a", 0)
    assert usable is not None
    assert (usable.start, usable.pages) == (0, [])


def test_a_long_context_slides_within_a_bounded_number_of_pages() -> None:
    table = DraftContextTable[str](100, 40)
    slots = Slots(table)
    table.open("a")
    for start in range(0, 400, 5):
        slots.write("a", start, start + 5)
        assert slots.read("a", start + 5) == list(range(max(0, start - 35), start + 5))
        assert table.num_pages - table.num_free_pages <= 4


def test_older_rows_after_newer_ones_lengthen_the_context() -> None:
    table = DraftContextTable[str](100, 1000)
    slots = Slots(table)
    table.open("a")
    slots.write("a", 488, 1000)
    assert slots.read("a", 1000) == list(range(488, 1000))
    slots.write("a", 100, 488)
    assert slots.read("a", 1000) == list(range(100, 1000))


def test_a_full_pool_is_shared_evenly_and_keeps_what_is_newest() -> None:
    table = DraftContextTable[str](8, 1000)
    slots = Slots(table)
    table.open("a")
    slots.write("a", 0, 128)
    table.open("b")
    for start in range(0, 128, 16):
        slots.write("b", start, start + 16)
    lengths = [len(slots.read(key, 128) or []) // 16 for key in "ab"]
    assert sum(lengths) == 8
    assert abs(lengths[0] - lengths[1]) <= 1


def test_older_rows_do_not_push_out_newer_ones() -> None:
    table = DraftContextTable[str](4, 1000)
    slots = Slots(table)
    table.open("a")
    slots.write("a", 64, 128)
    assert slots.write("a", 0, 64) == 64
    assert slots.read("a", 128) == list(range(64, 128))


@pytest.mark.parametrize("is_open", [False, True])
def test_a_closed_request_frees_its_pages(is_open: bool) -> None:
    table = DraftContextTable[str](1, 16)
    table.open("a")
    table.open("b")
    table.place("a", 0, 16)
    if not is_open:
        table.close("a")
    assert table.has_room("b") != is_open
    assert bool(table.place("b", 0, 16).slots) != is_open
