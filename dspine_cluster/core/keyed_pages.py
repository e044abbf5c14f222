"""Pages that several holders share: full ones can be found by key, and stay without a holder for as long as there is
room."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dspine_cluster.core.draft_page_index import DraftPageIndex
from dspine_cluster.core.page_hash import PageKey
from dspine_cluster.core.page_pool import PagePool


class KeyedPages:
    """A page pool, and an index of the pages that have a key. Of those the one whose use is longest ago makes room."""

    def __init__(self, num_pages: int, context_pages: int) -> None:
        """`context_pages` as for `DraftPageIndex`."""
        self.num_evictions = 0
        self._pool = PagePool(num_pages)
        self._index = DraftPageIndex(context_pages)
        self.events = self._index.events

    def __contains__(self, page: int) -> bool:
        """Whether the page can be found by a key."""
        return page in self._index

    @property
    def num_pages(self) -> int:
        return self._pool.num_pages

    @property
    def num_free(self) -> int:
        """Pages that nobody holds, those with a key included."""
        return self._pool.num_free + self._index.num_idle

    @property
    def num_keyed(self) -> int:
        """Pages that can be found by key, held or not."""
        return len(self._index)

    def find(self, key: PageKey) -> int | None:
        return self._index.find(key)

    def hold(self, page: int) -> None:
        """One more holder has the page, which has a key."""
        self._pool.share([page])
        self._index.note_held(page)

    def release(self, page: int) -> None:
        """One holder lets go of a page."""
        self._pool.release([page])
        if page in self._index and self._pool.num_references(page) == 1:
            self._index.note_idle(page)

    def allocate(self) -> int | None:
        """A page that nobody holds, at the cost of one with a key if there is no other."""
        if not self._pool.num_free and (evicted := self._index.evict()) is not None:
            self._pool.release([evicted])
            self.num_evictions += 1
        pages = self._pool.allocate(1)
        return None if pages is None else pages[0]

    def allocate_each(self, count: int) -> Iterator[int]:
        """As many such pages, or as there are."""
        pages = self._pool.allocate(count)
        if pages is not None:
            yield from pages
            return
        while count and (page := self.allocate()) is not None:
            count -= 1
            yield page

    def offer(self, page: int, key: PageKey, previous: PageKey | None, number: int) -> int:
        """Let others find a full page that the caller holds, page `number` of a request, after the one with the key
        `previous`. Returns the page with that key, which the caller holds from then on: the first of two is kept."""
        found = self._index.find(key)
        if found is not None and found != page:
            self.hold(found)
            self._pool.release([page])
            return found
        if found is None and page not in self._index:
            self._pool.share([page])
            self._index.add(key, previous, number, page)
        return page

    def withhold(self, page: int) -> None:
        """Let nobody else find a page that is held."""
        if page in self._index:
            self._index.remove(page)
            self._pool.release([page])

    def publish(self) -> None:
        """Bring `events` up to date."""
        self._index.publish()

    def check_integrity(self, num_holders: Sequence[int]) -> None:
        """Assert that of each page there are as many holders as are counted."""
        self._pool.check_integrity()
        self._index.check_integrity()
        counted = [self._pool.num_references(page) - (page in self._index) for page in range(self.num_pages)]
        assert counted == list(num_holders)
        num_idle = sum(num_holders[page] == 0 for page in self._index.pages)
        assert num_idle == self._index.num_idle, (
            "a page that nobody holds cannot be evicted, or one that is held can"
        )
