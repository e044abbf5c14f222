"""Which pages hold the draft context of which request, which of its positions are there, and what outlives requests."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

from dspine_cluster.core.draft_record import DraftRecord, NewestRun, Placement, UsableContext
from dspine_cluster.core.keyed_pages import KeyedPages
from dspine_cluster.core.page_hash import PageKey
from dspine_cluster.core.page_pool import extend_slots, num_pages_for
from dspine_cluster.types import PAGE_TOKENS

K = TypeVar("K", bound=Hashable)


class DraftContextTable(Generic[K]):
    """Contexts of open requests over one page pool, and pages of closed ones for as long as there is room.

    Features may come in any order of ranges. Each request keeps its newest `max_context_tokens` positions. A full page
    whose key is known is shared by all requests that name this key, and stays when the last of them closes. When the
    pool is full, the page that nobody holds and whose use is longest ago goes first; after these, pages are taken from
    the left end of the request that holds most: a shorter context costs acceptance, never correctness. A request's
    newest page is never taken by another.
    """

    def __init__(self, num_pages: int, max_context_tokens: int) -> None:
        assert num_pages >= 1
        assert max_context_tokens >= 1
        self.max_context_tokens = max_context_tokens
        self.shortened: set[K] = set()
        """Contexts that have lost pages to others, until whoever keeps copies of their page tables empties it."""
        self._pages = KeyedPages(num_pages, max(1, max_context_tokens // PAGE_TOKENS))
        self._records: dict[K, DraftRecord] = {}
        self.end_of: Callable[[K], int] = lambda key: 0
        """Up to where positions have come to follow each context's newest one, as whoever grows contexts sees it: as
        far as there are pages for them and its `newest_run` allows. Records are told when they are asked."""
        self.prefix_events = self._pages.events
        """Of the cached pages before which nothing is missing that a draft would read; any thread may take them."""

    def __contains__(self, key: K) -> bool:
        return key in self._records

    def __len__(self) -> int:
        return len(self._records)

    @property
    def num_pages(self) -> int:
        return self._pages.num_pages

    @property
    def num_free_pages(self) -> int:
        """Pages that no open request holds, cached ones included."""
        return self._pages.num_free

    @property
    def page_usage_ratio(self) -> float:
        """Share of the pages that open requests hold."""
        return 1.0 - self.num_free_pages / self.num_pages

    @property
    def num_cached_pages(self) -> int:
        """Pages that can be found by key, held or not."""
        return self._pages.num_keyed

    @property
    def num_evictions(self) -> int:
        """Cached pages that had to make room."""
        return self._pages.num_evictions

    def open(self, key: K, page_keys: Sequence[PageKey] = ()) -> list[tuple[int, int]]:
        """Start a context with what is cached of the pages that `page_keys` names, the request's first.

        Returns the ranges `start <= position < end` that it has already, in order: of the newest
        `max_context_tokens` positions of those pages all that are cached.
        """
        assert key not in self._records
        record = self._records[key] = DraftRecord(list(page_keys))
        oldest = len(page_keys) * PAGE_TOKENS - self.max_context_tokens
        for number in range(max(0, oldest // PAGE_TOKENS), len(page_keys)):
            page = self._pages.find(page_keys[number])
            if page is not None:
                self._pages.hold(page)
                record.put(number, page)
                record.positions.add(number * PAGE_TOKENS, (number + 1) * PAGE_TOKENS)
        return record.positions.ranges

    def close(self, key: K, more_page_keys: Sequence[PageKey] = ()) -> None:
        """Forget a context. Its full pages stay cached: those named before and those named now, which follow them."""
        record = self._record(key)
        named = range(len(record.keys), len(record.keys) + len(more_page_keys))
        record.keys += more_page_keys
        for number in named:
            self._share(record, number)
        del self._records[key]
        self.shortened.discard(key)
        # Of equally old pages the last is of least use to others.
        for number in sorted(record.pages, reverse=True):
            self._pages.release(record.pages[number])

    def place(self, key: K, start: int, end: int) -> list[Placement]:
        """Make room for positions `start <= position < end`, or for the newest of them, and count them as present.

        Only those that were missing get a place. Slots of pages that were taken away are handed out again: of rows
        placed in one slot the last is right.
        """
        record = self._record(key)
        assert 0 <= start < end
        oldest = max(record.positions.end, end) - self.max_context_tokens
        self._drop_pages_before(record, oldest)
        oldest = max(start, oldest)
        first = end
        if oldest < end:
            for number in range((end - 1) // PAGE_TOKENS, oldest // PAGE_TOKENS - 1, -1):
                if not self._hold(record, number):
                    break
                first = max(oldest, number * PAGE_TOKENS)
        placements = []
        for low, high in reversed(list(record.positions.gaps(first, end))):
            slots: list[int] = []
            extend_slots(slots, record.pages, low, high)
            placements.append(Placement(low, slots))
        if first < end:
            record.positions.add(first, end)
            if first // PAGE_TOKENS < len(record.keys):
                for number in range(first // PAGE_TOKENS, (end - 1) // PAGE_TOKENS + 1):
                    self._share(record, number)
        return placements

    def newest_run(self, key: K) -> NewestRun:
        """The contiguous run of positions that ends with the newest, and how far it may be grown."""
        record = self._record(key)
        end = record.positions.end
        start = record.positions.run_before(end)
        first = start // PAGE_TOKENS
        pages = [record.pages[number] for number in range(first, num_pages_for(end))]
        limit = 0
        if end and end // PAGE_TOKENS >= len(record.keys):
            limit = (record.lowest + 1) * PAGE_TOKENS + self.max_context_tokens - 1
        return NewestRun(start, end, pages, limit)

    def add_pages(self, wanted: Sequence[tuple[K, int]]) -> list[int]:
        """Give contexts a page each, the one after their newest by its number, until that would cost an open context a
        page. Returns those of the first contexts, as many as there are pages for."""
        records = [self._records[key] for key, _ in wanted]
        held = [record.pages.get(number) for record, (_, number) in zip(records, wanted, strict=True)]
        fresh = self._pages.allocate_each(held.count(None))
        pages: list[int] = []
        for record, (_, number), own in zip(records, wanted, held, strict=True):
            page = next(fresh, None) if own is None else own
            if page is None:
                break
            if own is None:
                record.put(number, page)
            pages.append(page)
        return pages

    def usable(self, key: K, anchor_position: int) -> UsableContext | None:
        """The context of a draft at `anchor_position`; None if the position before it is missing."""
        record = self._record(key)
        start = max(record.positions.run_before(anchor_position), anchor_position - self.max_context_tokens)
        if start == anchor_position:
            return UsableContext(start, 0, []) if anchor_position == 0 else None
        first, last = start // PAGE_TOKENS, (anchor_position - 1) // PAGE_TOKENS
        return UsableContext(start, first, record.pages_from(first, last))

    def missing(self, key: K, anchor_position: int) -> tuple[int, int]:
        """The range of positions to ask for when `usable` is None."""
        gap = self._record(key).positions.gap_before(anchor_position)
        return max(gap, anchor_position - self.max_context_tokens), anchor_position

    def has_room(self, key: K) -> bool:
        """Whether `place` can take at least the newest page of what it is given: all but the others' newest pages can
        be had."""
        kept = {
            record.pages[max(record.pages)]
            for other, record in self._records.items()
            if other != key and record.pages
        }
        return len(kept) < self.num_pages

    def distrust(self, key: K) -> None:
        """The request's rows turned out to be of no use: nobody else is to find them."""
        record = self._records[key]
        record.is_trusted = False
        for page in record.pages.values():
            self._pages.withhold(page)

    def publish(self) -> None:
        """Bring `prefix_events` up to date."""
        self._pages.publish()

    def check_integrity(self) -> None:
        """Assert that every page has the holders it counts, and every present or cached position a page."""
        for key in self._records:
            self._record(key)
        num_holders = [0] * self.num_pages
        for record in self._records.values():
            assert len(set(record.pages.values())) == len(record.pages), "a page is held twice by one request"
            assert not record.pages or record.lowest == min(record.pages)
            for number, page in enumerate(record.run, record.run_start):
                assert record.pages[number] == page, "a page table is out of date"
            for page in record.pages.values():
                num_holders[page] += 1
            for start, end in record.positions.ranges:
                numbers = range(start // PAGE_TOKENS, (end - 1) // PAGE_TOKENS + 1)
                assert all(number in record.pages for number in numbers), "a position has no page"
            for number, page in record.pages.items():
                assert page not in self._pages or record.has_whole_page(number), (
                    "a page with a key is not full"
                )
        self._pages.check_integrity(num_holders)

    def _hold(self, record: DraftRecord, number: int) -> bool:
        """Give the record page `number` if it lacks it; False if that would cost a newer page or another's last."""
        if number in record.pages:
            return True
        while (page := self._pages.allocate()) is None:
            if not self._give_up_page(record, number):
                return False
        record.put(number, page)
        return True

    def _record(self, key: K) -> DraftRecord:
        """The record, told of all its positions."""
        record = self._records[key]
        end = self.end_of(key)
        if 0 < record.positions.end < end:  # whoever has lost all its positions since has none to follow
            record.positions.grow(end)
        return record

    def _give_up_page(self, record: DraftRecord, number: int) -> bool:
        """Drop the oldest page of the largest holder, of `record` itself if it is about as large. It becomes free
        unless others hold it too."""
        key, largest = max(self._records.items(), key=lambda entry: len(entry[1].pages))
        if len(largest.pages) > len(record.pages) + 1:
            self.shortened.add(key)
            self._drop_oldest_page(self._record(key))
            return True
        if not record.pages or record.lowest > number:
            return False
        self._drop_oldest_page(record)
        return True

    def _drop_oldest_page(self, record: DraftRecord) -> None:
        number = record.lowest
        record.positions.drop_before((number + 1) * PAGE_TOKENS)
        self._pages.release(record.drop(number))

    def _drop_pages_before(self, record: DraftRecord, position: int) -> None:
        """Let go of the pages that lie wholly before `position`."""
        while record.pages and (record.lowest + 1) * PAGE_TOKENS <= position:
            self._drop_oldest_page(record)

    def _share(self, record: DraftRecord, number: int) -> None:
        """Let others find page `number` if it is full and has a key; of two pages with one key the first is kept."""
        if not (record.is_trusted and number < len(record.keys) and record.has_whole_page(number)):
            return
        page = record.pages[number]
        shared = self._pages.offer(
            page, record.keys[number], record.keys[number - 1] if number else None, number
        )
        if shared != page:
            record.put(number, shared)
