"""Which full pages of draft context can be found by key, and which prefixes they make whole."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from dspine_cluster.core.page_hash import PageKey
from dspine_cluster.core.prefix_events import PrefixEvents


@dataclass(slots=True)
class _Entry:
    key: PageKey
    parent: PageKey | None
    """Key of the page before; None for a request's first page."""
    number: int
    """Page number in every request that has it."""
    page: int
    run: int = 0
    """Indexed pages in a row up to this one, itself counted; what is beyond the context of a draft is not counted."""
    is_whole: bool = False


class DraftPageIndex:
    """Pages of the pool by key, with those that nobody holds in the order of their last use.

    A page's prefix is whole when all pages of it are indexed that a draft after it would read: `context_pages` of
    them, or all from the request's first. Whoever places requests hears of these only.
    """

    def __init__(self, context_pages: int) -> None:
        assert context_pages >= 1
        self._context_pages = context_pages
        self._entries: dict[PageKey, _Entry] = {}
        self._by_page: dict[int, _Entry] = {}
        self._children: dict[PageKey, set[PageKey]] = {}
        """Indexed pages by the key of the page before, which may itself be missing."""
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._changed: dict[PageKey, int] = {}
        """Keys added or removed since `publish`, with their page numbers."""
        self.events = PrefixEvents()
        """Of the pages whose prefix is whole, as of the last `publish`."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, page: int) -> bool:
        return page in self._by_page

    @property
    def pages(self) -> Iterable[int]:
        return self._by_page.keys()

    @property
    def num_idle(self) -> int:
        """Pages that nobody holds."""
        return len(self._idle)

    def find(self, key: PageKey) -> int | None:
        """The page with this key."""
        entry = self._entries.get(key)
        return None if entry is None else entry.page

    def add(self, key: PageKey, parent: PageKey | None, number: int, page: int) -> None:
        """Index a page that somebody holds and whose rows will not change any more."""
        assert key not in self._entries
        assert page not in self._by_page
        assert (parent is None) == (number == 0)
        self._entries[key] = self._by_page[page] = _Entry(key, parent, number, page)
        if parent is not None:
            self._children.setdefault(parent, set()).add(key)
        self._changed[key] = number

    def remove(self, page: int) -> None:
        """Forget a page."""
        entry = self._by_page.pop(page)
        del self._entries[entry.key]
        self._idle.pop(page, None)
        if entry.parent is not None:
            siblings = self._children[entry.parent]
            siblings.remove(entry.key)
            if not siblings:
                del self._children[entry.parent]
        self._changed[entry.key] = entry.number

    def note_held(self, page: int) -> None:
        """Somebody holds the page again, or once more."""
        self._idle.pop(page, None)

    def note_idle(self, page: int) -> None:
        """Nobody holds the page any more; of all idle pages it is the one used last."""
        assert page in self._by_page
        assert page not in self._idle
        self._idle[page] = None

    def evict(self) -> int | None:
        """Forget the idle page whose last use is longest ago and give it; None when somebody holds every page."""
        page = next(iter(self._idle), None)
        if page is not None:
            self.remove(page)
        return page

    def publish(self) -> None:
        """Find out which prefixes have become whole, or no longer are, since last asked."""
        if not self._changed:
            return
        changed = sorted(self._changed, key=self._changed.__getitem__)
        self._changed.clear()
        whole: dict[PageKey, bool] = {}
        for key in changed:  # leftmost first, so that a chain is walked once
            self._update_runs(key, whole)
        present = self.events.present if whole else set()
        for key, is_whole in whole.items():
            if is_whole and key not in present:
                self.events.add(key)
            elif not is_whole and key in present:
                self.events.discard(key)

    def check_integrity(self) -> None:
        """Assert that the maps agree with each other."""
        assert {entry.page: entry for entry in self._entries.values()} == self._by_page
        assert all(key == entry.key for key, entry in self._entries.items())
        children: dict[PageKey, set[PageKey]] = {}
        for entry in self._entries.values():
            if entry.parent is not None:
                children.setdefault(entry.parent, set()).add(entry.key)
        assert children == self._children
        assert self._idle.keys() <= self._by_page.keys()

    def _update_runs(self, first: PageKey, whole: dict[PageKey, bool]) -> None:
        """Measure the run of `first` and, as far as that changes anything, of the pages after it."""
        todo = [first]
        while todo:
            key = todo.pop()
            entry = self._entries.get(key)
            before = None if entry is None else (entry.run, entry.is_whole)
            if entry is not None:
                self._measure(entry)
            whole[key] = entry is not None and entry.is_whole
            if key == first or entry is None or (entry.run, entry.is_whole) != before:
                todo.extend(self._children.get(key, ()))

    def _measure(self, entry: _Entry) -> None:
        parent = self._entries.get(entry.parent) if entry.parent is not None else None
        entry.run = min(self._context_pages, 1 + (parent.run if parent is not None else 0))
        follows_whole = parent is not None and parent.is_whole
        entry.is_whole = entry.number == 0 or entry.run == self._context_pages or follows_whole
