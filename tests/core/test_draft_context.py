"""The draft context table: whatever it says is usable is really there, and the newest survives pressure."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dspine_cluster.core.draft_context import DraftContextTable

names = st.sampled_from("abcd")
NUM_TEXT_PAGES = 14
TEXT, OTHER_TEXT = "o" * 70, "x" * 70


def key_of(text: str, number: int) -> bytes:
    """A text has one letter a page; a page's key names it and all before it."""
    return text[: number + 1].encode()


def keys_of(text: str, start: int, end: int) -> list[bytes]:
    return [key_of(text, number) for number in range(start, end)]


class Slots:
    """What stands in each slot of a pool: the rows that were written there last, by their tokens and position."""

    def __init__(self, table: DraftContextTable[str]) -> None:
        self.table = table
        self.texts: dict[str, str] = {}
        self.contents: dict[int, tuple[bytes, int]] = {}

    def open(self, name: str, text: str, num_keys: int = 0) -> list[tuple[int, int]]:
        self.texts[name] = text
        return self.table.open(name, keys_of(text, 0, num_keys))

    def row(self, name: str, position: int) -> tuple[bytes, int]:
        return key_of(self.texts[name], position // 16), position

    def write(self, name: str, start: int, end: int) -> list[int]:
        """Place and write the rows; the positions that got a place."""
        written: list[int] = []
        for placement in self.table.place(name, start, end):
            for position, slot in enumerate(placement.slots, placement.start):
                self.contents[slot] = self.row(name, position)
                written.append(position)
        assert written == sorted(set(written))
        assert all(start <= position < end for position in written)
        return written

    def read(self, name: str, anchor_position: int) -> list[int] | None:
        """Positions of the usable context, each found in its slot."""
        usable = self.table.usable(name, anchor_position)
        if usable is None:
            return None
        positions = list(range(usable.start, anchor_position))
        for position in positions:
            page = usable.pages[position // 16 - usable.first_page]
            assert self.contents[page * 16 + position % 16] == self.row(name, position)
        return positions


def take_prefix_events(table: DraftContextTable[str]) -> tuple[set[bytes], set[bytes]]:
    table.publish()
    return table.prefix_events.take()


def whole_prefixes(table: DraftContextTable[str]) -> set[bytes]:
    """Keys of the cached pages before which nothing is missing that a draft would read."""
    cached = set(table._pages._index._entries)
    num_context = max(1, table.max_context_tokens // 16)
    return {
        key
        for key in cached
        if all(key[: length + 1] in cached for length in range(max(0, len(key) - num_context), len(key)))
    }


class TableMachine(RuleBasedStateMachine):
    """Several requests, of which some begin alike, whose features come and go in any order of ranges."""

    @initialize(num_pages=st.integers(1, 30), max_context_tokens=st.integers(1, 250))
    def start(self, num_pages: int, max_context_tokens: int) -> None:
        self.table = DraftContextTable[str](num_pages, max_context_tokens)
        self.slots = Slots(self.table)
        self.newest: dict[str, int] = {}
        self.num_keys: dict[str, int] = {}
        self.published: set[bytes] = set()
        self.num_found = 0

    @rule(name=names, num_same=st.sampled_from((0, 3, 6, 14)), num_keys=st.sampled_from((0, 2, 5, 9, 14)))
    def open(self, name: str, num_same: int, num_keys: int) -> None:
        if name in self.table:
            return
        ranges = self.slots.open(name, TEXT[:num_same] + OTHER_TEXT[num_same:NUM_TEXT_PAGES], num_keys)
        self.num_keys[name] = num_keys
        if ranges:
            self.num_found += 1
            self.newest[name] = ranges[-1][1]

    @rule(name=names)
    def prefill(self, name: str) -> None:
        """All that the open context names, as a prompt is prefilled."""
        if name in self.table and self.num_keys[name]:
            self.place(name, 0, 16 * self.num_keys[name])

    @rule(name=names, num_more=st.integers(0, NUM_TEXT_PAGES))
    def close(self, name: str, num_more: int) -> None:
        if name in self.table:
            num_keys = self.num_keys.pop(name)
            self.table.close(name, keys_of(self.slots.texts[name], num_keys, min(14, num_keys + num_more)))
            self.newest.pop(name, None)

    @rule(name=names)
    def distrust(self, name: str) -> None:
        if name in self.table:
            held = self.table._records[name].pages.values()
            self.table.distrust(name)
            assert not any(page in self.table._pages for page in held)

    @rule(name=names, start=st.integers(0, 150), count=st.integers(1, 60))
    def place(self, name: str, start: int, count: int) -> None:
        if name not in self.table:
            return
        end = start + count
        had_room = self.table.has_room(name)
        self.slots.write(name, start, end)
        if end > self.newest.get(name, 0):
            is_there = self.table.usable(name, end) is not None
            assert is_there == had_room, "the newest row finds room exactly when there is some"
            if is_there:
                self.newest[name] = end

    @rule()
    def publish(self) -> None:
        added, removed = take_prefix_events(self.table)
        assert self.published.isdisjoint(added)
        assert self.published.issuperset(removed)
        self.published = self.published.difference(removed).union(added)
        assert self.published == whole_prefixes(self.table)

    @invariant()
    def what_is_usable_is_there(self) -> None:
        if not hasattr(self, "table"):
            return
        self.table.check_integrity()
        for name, newest in self.newest.items():
            positions = self.slots.read(name, newest)
            assert positions, "the newest position was lost"
            assert len(positions) <= self.table.max_context_tokens

    def teardown(self) -> None:
        if not hasattr(self, "table"):
            return
        for name in list(self.newest.keys() | self.num_keys.keys()):
            self.table.close(name)
        self.table.check_integrity()
        assert self.table.num_free_pages == self.table.num_pages, "a page has leaked"


TableMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40)
TestTableMachine = TableMachine.TestCase


def walk(seed: int, num_steps: int) -> TableMachine:
    """Many more steps than a search for the shortest failure takes."""
    random = Random(seed)
    machine = TableMachine()
    machine.start(num_pages=random.randint(1, 30), max_context_tokens=random.randint(1, 250))
    for _ in range(num_steps):
        name = random.choice("aabbcd")
        match random.randrange(12):
            case 0 | 1 | 2:
                machine.open(name, random.choice((0, 3, 6, 14)), random.choice((0, 2, 5, 9, 14)))
            case 3 | 4:
                machine.close(name, random.randrange(NUM_TEXT_PAGES))
            case 5 | 6 | 7:
                machine.prefill(name)
            case 8 | 9 | 10:
                machine.place(name, random.randint(0, 150), random.randint(1, 60))
            case _:
                machine.distrust(name) if random.random() < 0.2 else machine.publish()
        machine.what_is_usable_is_there()
    machine.teardown()
    return machine


def test_pages_hold_what_they_should_and_none_leaks_over_ten_thousand_steps() -> None:
    machines = [walk(seed, 500) for seed in range(20)]
    assert sum(machine.num_found for machine in machines) > 200, "the walk does not reach what is cached"
    assert sum(machine.table.num_evictions for machine in machines) > 200


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(1, 80)), min_size=1, max_size=20))
def test_without_pressure_nothing_is_lost_and_the_run_is_as_long_as_it_can_be(
    ranges: list[tuple[int, int]],
) -> None:
    table = DraftContextTable[str](100, 10_000)
    slots = Slots(table)
    slots.open("a", TEXT)
    positions: set[int] = set()
    for start, count in ranges:
        slots.write("a", start, start + count)
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
    slots.open("a", TEXT)
    for start in range(0, 400, 5):
        slots.write("a", start, start + 5)
        assert slots.read("a", start + 5) == list(range(max(0, start - 35), start + 5))
        assert table.num_pages - table.num_free_pages <= 4


def test_older_rows_after_newer_ones_lengthen_the_context() -> None:
    table = DraftContextTable[str](100, 1000)
    slots = Slots(table)
    slots.open("a", TEXT)
    slots.write("a", 488, 1000)
    assert slots.read("a", 1000) == list(range(488, 1000))
    slots.write("a", 100, 488)
    assert slots.read("a", 1000) == list(range(100, 1000))


def test_a_full_pool_is_shared_evenly_and_keeps_what_is_newest() -> None:
    table = DraftContextTable[str](8, 1000)
    slots = Slots(table)
    slots.open("a", TEXT)
    slots.write("a", 0, 128)
    slots.open("b", OTHER_TEXT)
    for start in range(0, 128, 16):
        slots.write("b", start, start + 16)
    lengths = [len(slots.read(key, 128) or []) // 16 for key in "ab"]
    assert sum(lengths) == 8
    assert abs(lengths[0] - lengths[1]) <= 1


def test_older_rows_do_not_push_out_newer_ones() -> None:
    table = DraftContextTable[str](4, 1000)
    slots = Slots(table)
    slots.open("a", TEXT)
    slots.write("a", 64, 128)
    assert slots.write("a", 0, 64) == []
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
    assert bool(table.place("b", 0, 16)) != is_open


def cached_table(
    num_pages: int, max_context_tokens: int = 1000, num_tokens: int = 64
) -> tuple[Slots, list[bytes]]:
    """A table that has seen one request of `num_tokens` tokens, and the keys of its pages."""
    slots = Slots(DraftContextTable[str](num_pages, max_context_tokens))
    slots.open("first", TEXT)
    slots.write("first", 0, num_tokens)
    keys = keys_of(TEXT, 0, num_tokens // 16)
    slots.table.close("first", keys)
    return slots, keys


def test_full_pages_of_a_closed_request_serve_the_next_one_that_begins_alike() -> None:
    slots, _ = cached_table(100, num_tokens=70)
    assert slots.open("second", TEXT, 6) == [(0, 64)]
    assert slots.table.num_pages - slots.table.num_free_pages == 4
    assert slots.write("second", 0, 100) == list(range(64, 100)), "what is there needs no place"
    assert slots.read("second", 100) == list(range(100))


def test_another_text_shares_only_the_pages_before_it_differs() -> None:
    slots, _ = cached_table(100)
    assert slots.open("second", TEXT[:2] + OTHER_TEXT[2:], 4) == [(0, 32)]


def test_pages_named_at_the_end_are_cached_like_those_named_at_the_start() -> None:
    slots = Slots(DraftContextTable[str](100, 1000))
    slots.open("a", TEXT, 2)
    slots.write("a", 0, 80)
    slots.table.close("a", keys_of(TEXT, 2, 4))
    assert slots.table.num_cached_pages == 4
    assert slots.open("b", TEXT, 5) == [(0, 64)]


def test_requests_that_run_at_the_same_time_hold_one_page_together() -> None:
    slots = Slots(DraftContextTable[str](100, 1000))
    for name in "abc":
        slots.open(name, TEXT, 3)
    for name in "abc":
        slots.write(name, 0, 48)
    table = slots.table
    assert table.num_pages - table.num_free_pages == 3
    for name in "abc":
        assert slots.read(name, 48) == list(range(48))
        table.close(name)
    table.check_integrity()


def test_the_page_used_longest_ago_is_evicted_first_and_the_end_of_a_request_before_its_beginning() -> None:
    slots, _ = cached_table(8)
    slots.open("other", OTHER_TEXT, 4)
    slots.write("other", 0, 64)
    slots.table.close("other")
    slots.open("again", TEXT, 2)
    slots.table.close("again")
    slots.open("new", "n" * 20)
    slots.write("new", 0, 48)
    assert slots.table.num_evictions == 3
    assert slots.open("first", TEXT, 4) == [(0, 32)]
    assert slots.open("second", OTHER_TEXT, 4) == [(0, 48)]


def test_a_page_that_is_held_is_not_evicted() -> None:
    slots, _ = cached_table(4)
    slots.open("holder", TEXT, 2)
    slots.open("new", OTHER_TEXT)
    slots.write("new", 0, 64)
    assert slots.read("holder", 32) == list(range(32))
    assert slots.read("new", 64) == list(range(32, 64))
    assert slots.open("third", TEXT, 4) == [(0, 32)]


def test_what_was_evicted_in_the_middle_can_be_filled_in() -> None:
    slots, _ = cached_table(6, num_tokens=96)
    table = slots.table
    hole = table._pages.find(key_of(TEXT, 2))
    assert hole is not None
    table._pages.withhold(hole)
    assert slots.open("a", TEXT, 6) == [(0, 32), (48, 96)]
    assert slots.read("a", 96) == list(range(48, 96))
    assert slots.write("a", 30, 50) == list(range(32, 48))
    assert slots.read("a", 96) == list(range(96))


def test_of_a_long_prefix_only_what_a_draft_can_see_is_taken() -> None:
    slots, _ = cached_table(100, max_context_tokens=32)
    assert slots.open("a", TEXT, 4) == [(32, 64)]


def test_nobody_finds_the_pages_of_a_request_that_is_not_trusted() -> None:
    slots = Slots(DraftContextTable[str](100, 1000))
    slots.open("a", TEXT, 2)
    slots.write("a", 0, 64)
    slots.table.distrust("a")
    assert slots.open("b", TEXT, 4) == []
    slots.table.close("a", keys_of(TEXT, 2, 4))
    assert slots.open("c", TEXT, 4) == []


def test_prefixes_are_published_as_far_as_they_are_whole() -> None:
    slots = Slots(DraftContextTable[str](100, 1000))
    table = slots.table
    slots.open("a", TEXT, 4)
    slots.write("a", 32, 64)
    assert take_prefix_events(table) == (set(), set())
    slots.write("a", 0, 16)
    assert take_prefix_events(table) == (set(keys_of(TEXT, 0, 1)), set())
    slots.write("a", 16, 32)
    assert take_prefix_events(table) == (set(keys_of(TEXT, 1, 4)), set())
    table.distrust("a")
    assert take_prefix_events(table) == (set(), set(keys_of(TEXT, 0, 4)))


def test_a_prefix_longer_than_a_draft_can_see_is_whole_without_its_beginning() -> None:
    slots = Slots(DraftContextTable[str](100, 32))
    slots.open("a", TEXT, 4)
    slots.write("a", 0, 64)
    assert take_prefix_events(slots.table) == ({key_of(TEXT, 3)}, set())
