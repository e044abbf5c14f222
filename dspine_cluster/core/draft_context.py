"""Which pages hold the draft context of which request, and which of its positions are there."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from dspine_cluster.core.page_pool import PagePool, slot_of
from dspine_cluster.core.position_ranges import PositionRanges
from dspine_cluster.types import PAGE_TOKENS

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the rows of positions `start`, `start + 1`, ... belong: one slot (page * 16 + offset) each."""

    start: int
    slots: list[int]


@dataclass(frozen=True, slots=True)
class UsableContext:
    """The contiguous run of positions from `start` up to an anchor, and the pages that hold it."""

    start: int
    first_page: int
    """Page number, in the request, of `pages[0]`: it holds positions from 16 * first_page."""
    pages: list[int]


@dataclass(slots=True)
class _Record:
    pages: dict[int, int] = field(default_factory=dict)
    """Page number in the request -> page of the pool."""
    positions: PositionRanges = field(default_factory=PositionRanges)


class DraftContextTable(Generic[K]):
    """Context of open requests over one page pool.

    Features may come in any order of ranges. Each request keeps its newest `max_context_tokens` positions. When the
    pool is full, pages are taken from the left end of the request that holds most: a shorter context costs
    acceptance, never correctness. A request's newest page is never taken by another.
    """

    def __init__(self, num_pages: int, max_context_tokens: int) -> None:
        assert num_pages >= 1
        assert max_context_tokens >= 1
        self._pool = PagePool(num_pages)
        self._max_context_tokens = max_context_tokens
        self._records: dict[K, _Record] = {}

    def __contains__(self, key: K) -> bool:
        return key in self._records

    def __len__(self) -> int:
        return len(self._records)

    @property
    def num_pages(self) -> int:
        return self._pool.num_pages

    @property
    def num_free_pages(self) -> int:
        return self._pool.num_free

    def open(self, key: K) -> None:
        """Start an empty context."""
        assert key not in self._records
        self._records[key] = _Record()

    def close(self, key: K) -> None:
        """Forget a context and free its pages."""
        self._pool.release(self._records.pop(key).pages.values())

    def place(self, key: K, start: int, end: int) -> Placement:
        """Make room for positions `start <= position < end`, or for the newest of them, and count them as present.

        Slots of pages that were taken away are handed out again: of rows placed in one slot the last is right.
        """
        record = self._records[key]
        assert 0 <= start < end
        oldest = max(record.positions.end, end) - self._max_context_tokens
        self._drop_pages_before(record, oldest)
        oldest = max(start, oldest)
        first = end
        if oldest < end:
            for number in range((end - 1) // PAGE_TOKENS, oldest // PAGE_TOKENS - 1, -1):
                if not self._hold(record, number):
                    break
                first = max(oldest, number * PAGE_TOKENS)
        if first < end:
            record.positions.add(first, end)
        return Placement(first, [slot_of(record.pages, position) for position in range(first, end)])

    def usable(self, key: K, anchor_position: int) -> UsableContext | None:
        """The context of a draft at `anchor_position`; None if the position before it is missing."""
        record = self._records[key]
        start = max(record.positions.run_before(anchor_position), anchor_position - self._max_context_tokens)
        if start == anchor_position:
            return UsableContext(start, 0, []) if anchor_position == 0 else None
        numbers = range(start // PAGE_TOKENS, (anchor_position - 1) // PAGE_TOKENS + 1)
        return UsableContext(start, numbers[0], [record.pages[number] for number in numbers])

    def missing(self, key: K, anchor_position: int) -> tuple[int, int]:
        """The range of positions to ask for when `usable` is None."""
        gap = self._records[key].positions.gap_before(anchor_position)
        return max(gap, anchor_position - self._max_context_tokens), anchor_position

    def has_room(self, key: K) -> bool:
        """Whether `place` can take at least the newest page of what it is given."""
        if self._pool.num_free or self._records[key].pages:
            return True
        return any(len(record.pages) > 1 for record in self._records.values())

    def check_integrity(self) -> None:
        """Assert that every page has one holder and every present position a page."""
        self._pool.check_integrity()
        held = [page for record in self._records.values() for page in record.pages.values()]
        assert len(set(held)) == len(held), "a page is held twice"
        assert len(held) + self._pool.num_free == self._pool.num_pages, "a page is lost"
        for record in self._records.values():
            for start, end in record.positions.ranges:
                numbers = range(start // PAGE_TOKENS, (end - 1) // PAGE_TOKENS + 1)
                assert all(number in record.pages for number in numbers), "a position has no page"

    def _hold(self, record: _Record, number: int) -> bool:
        """Give the record page `number` if it lacks it; False if that would cost a newer page or another's last."""
        if number in record.pages:
            return True
        if not self._pool.num_free and not self._take_page(record, number):
            return False
        pages = self._pool.allocate(1)
        assert pages is not None
        record.pages[number] = pages[0]
        return True

    def _take_page(self, record: _Record, number: int) -> bool:
        """Free the oldest page of the largest holder, of `record` itself if it is about as large."""
        largest = max(self._records.values(), key=lambda other: len(other.pages))
        if len(largest.pages) > len(record.pages) + 1:
            self._drop_oldest_page(largest)
            return True
        if not record.pages or min(record.pages) > number:
            return False
        self._drop_oldest_page(record)
        return True

    def _drop_oldest_page(self, record: _Record) -> None:
        number = min(record.pages)
        record.positions.drop_before((number + 1) * PAGE_TOKENS)
        self._pool.release([record.pages.pop(number)])

    def _drop_pages_before(self, record: _Record, position: int) -> None:
        """Free the pages that lie wholly before `position`."""
        while record.pages and (min(record.pages) + 1) * PAGE_TOKENS <= position:
            self._drop_oldest_page(record)
