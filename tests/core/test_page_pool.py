from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dspine_cluster.core.page_pool import PagePool, extend_slots, num_pages_for, slot_of

NUM_PAGES = 12


class PagePoolMachine(RuleBasedStateMachine):
    """Holders take, share and release pages; a multiset of held pages is the model."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(NUM_PAGES)
        self.held: Counter[int] = Counter()

    @rule(count=st.integers(0, NUM_PAGES + 2))
    def allocate(self, count: int) -> None:
        num_free = NUM_PAGES - len(self.held)
        pages = self.pool.allocate(count)
        if count > num_free:
            assert pages is None
            return
        assert pages is not None
        assert len(set(pages)) == count
        assert not set(pages) & set(self.held)
        self.held.update(pages)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        pages = data.draw(st.lists(st.sampled_from(sorted(self.held)), max_size=4))
        self.pool.share(pages)
        self.held.update(pages)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        pages = data.draw(st.lists(st.sampled_from(sorted(self.held)), max_size=4, unique=True))
        self.pool.release(pages)
        self.held -= Counter(pages)

    @invariant()
    def pool_agrees_with_the_model(self) -> None:
        self.pool.check_integrity()
        assert self.pool.num_free == NUM_PAGES - len(self.held)
        for page in range(NUM_PAGES):
            assert self.pool.num_references(page) == self.held[page]


TestPagePool = PagePoolMachine.TestCase
TestPagePool.settings = settings(max_examples=60, stateful_step_count=30)


def test_fresh_pages_come_in_ascending_order_and_the_last_released_first() -> None:
    pool = PagePool(4)
    assert pool.allocate(2) == [0, 1]
    pool.release([0])
    assert pool.allocate(2) == [0, 2]


def test_a_request_for_too_many_pages_takes_none() -> None:
    pool = PagePool(3)
    assert pool.allocate(4) is None
    assert pool.num_free == 3


def test_a_shared_page_stays_until_its_last_holder_releases_it() -> None:
    pool = PagePool(1)
    pages = pool.allocate(1)
    assert pages is not None
    pool.share(pages)
    pool.release(pages)
    assert pool.num_free == 0
    pool.release(pages)
    assert pool.num_free == 1


def test_releasing_or_sharing_a_free_page_is_our_bug() -> None:
    pool = PagePool(1)
    with pytest.raises(AssertionError, match="released more often"):
        pool.release([0])
    with pytest.raises(AssertionError, match="cannot be shared"):
        pool.share([0])


@given(st.integers(0, 10_000))
def test_pages_hold_their_tokens_and_no_page_is_spare(num_tokens: int) -> None:
    pages = num_pages_for(num_tokens)
    assert 16 * (pages - 1) < num_tokens <= 16 * pages


def test_consecutive_positions_fill_a_page_before_the_next() -> None:
    slots = [slot_of([7, 2], position) for position in range(32)]
    assert slots == [*range(7 * 16, 8 * 16), *range(2 * 16, 3 * 16)]


@given(st.permutations(range(6)), st.integers(0, 96), st.integers(0, 96))
def test_slots_of_a_run_are_those_of_its_positions(pages: list[int], start: int, end: int) -> None:
    slots = [-1]
    extend_slots(slots, pages, start, end)
    assert slots == [-1, *(slot_of(pages, position) for position in range(start, end))]
