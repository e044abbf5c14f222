"""The contexts of all attached requests in columns, so that a round's features and drafts cost next to nothing each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dspine_cluster.core.draft_context import DraftContextTable
from dspine_cluster.drafter.client import NO_ROW, RequestKey
from dspine_cluster.transport.messages import Int32Array, Int64Array
from dspine_cluster.types import PAGE_TOKENS

_NUM_ROWS = 64
_NUM_PAGES = 64
"""Of the tables at first; they double when more are needed."""


class Places(NamedTuple):
    """Where feature rows belong."""

    kept: Int64Array | None
    """int64 [n]: which of the rows get a place; None for all of them."""
    positions: Int64Array  # [n]
    slots: Int64Array  # [n]: page * 16 + offset


class DraftPages(NamedTuple):
    """Contexts of B blocks: contiguous runs of positions up to their anchors."""

    starts: Int64Array  # [B]: first position
    first_pages: Int64Array  # [B]: page number, in the request, of the table's first column
    page_table: Int32Array  # [B, num_pages]; what lies beyond a context may be any page

    def of(self, blocks: npt.NDArray[np.bool_]) -> DraftPages:
        """Some of the blocks."""
        return DraftPages(self.starts[blocks], self.first_pages[blocks], self.page_table[blocks])


class ContextRows:
    """A row of numbers for each open context of `contexts`, which owns what they copy.

    The usual features follow right behind what is there: they are placed for all requests at once, and a context is
    asked only where they need a new page. All others, and those that end up in shared pages, go through `contexts`.
    """

    def __init__(self, contexts: DraftContextTable[RequestKey]) -> None:
        self._contexts = contexts
        contexts.end_of = lambda key: int(self._runs[1, self._rows.get(key, NO_ROW)])
        self._keys: list[RequestKey | None] = [None] * _NUM_ROWS
        self._rows: dict[RequestKey, int] = {}
        self._free = list(range(_NUM_ROWS - 1, NO_ROW, -1))
        self._runs = np.zeros((4, _NUM_ROWS), np.int64)
        """Of the newest run: its start, its end, the end of its last page, and `NewestRun.limit`."""
        self._runs[1, NO_ROW] = -1  # nothing ever follows right behind what nobody has
        self._pages = np.zeros((_NUM_ROWS, _NUM_PAGES), np.int32)
        """Of the newest run."""

    def key(self, row: int) -> RequestKey:
        key = self._keys[row]
        assert key is not None
        return key

    def open(self, key: RequestKey) -> int:
        """A row for a context that has been opened."""
        if not self._free:
            num_rows = len(self._keys)
            self._free = list(range(2 * num_rows - 1, num_rows - 1, -1))
            self._keys += [None] * num_rows
            self._runs = np.pad(self._runs, ((0, 0), (0, num_rows)))
            self._pages = np.pad(self._pages, ((0, num_rows), (0, 0)))
        row = self._free.pop()
        self._keys[row] = key
        self._rows[key] = row
        self._runs[1, row] = 0
        self._load(row)
        return row

    def close(self, row: int) -> None:
        """The row's context has been closed."""
        del self._rows[self.key(row)]
        self._keys[row] = None
        self._free.append(row)

    def place(self, rows: list[int], starts: Int64Array, counts: Int64Array) -> Places:
        """Find places for the new ones of the features in runs of `counts` from `starts`, each of a request's row or of
        `NO_ROW`, which gets none."""
        self._reload_shortened()
        if len(set(rows)) < len(rows):
            return self._place_slowly(rows, range(len(rows)), starts, counts)
        index = np.array(rows)
        ends = starts + counts
        _, run_ends, page_ends, limits = self._runs[:, index]
        fits = (starts == run_ends) & (ends <= limits)
        needs_page = fits & (ends > page_ends)
        if needs_page.any():
            which = np.flatnonzero(needs_page).tolist()
            lacking = self._add_pages([rows[i] for i in which], ends[which].tolist())
            for i in lacking:
                fits[which[i]] = False
        if fits.all():
            return Places(None, *self._grow(index, counts, ends))
        positions, slots = self._grow(index[fits], counts[fits], ends[fits])
        kept = np.flatnonzero(np.repeat(fits, counts))
        slow = self._place_slowly(rows, np.flatnonzero(~fits).tolist(), starts, counts)
        assert slow.kept is not None
        parts = ((kept, slow.kept), (positions, slow.positions), (slots, slow.slots))
        return Places(*(np.concatenate(part) for part in parts))

    def find(self, rows: list[int], positions: Int64Array) -> tuple[DraftPages, npt.NDArray[np.bool_]]:
        """The contexts of blocks anchored at `positions`, and which of them there are: only where the feature before
        the anchor is there."""
        self._reload_shortened()
        index = np.array(rows)
        run_starts, run_ends, _, _ = self._runs[:, index]
        starts = np.maximum(run_starts, positions - self._contexts.max_context_tokens)
        first_pages = starts // PAGE_TOKENS
        num_pages = -(-positions // PAGE_TOKENS) - first_pages
        is_there = positions == run_ends
        others: list[tuple[int, Int32Array]] = []
        for i in np.flatnonzero(~is_there).tolist():
            num_pages[i] = 0
            context = self._contexts.usable(self.key(rows[i]), int(positions[i]))
            if context is not None:
                is_there[i] = True
                starts[i], first_pages[i] = context.start, context.first_page
                others.append((i, np.array(context.pages, np.int32)))
        width = max(1, int(num_pages.max()), *(len(pages) for _, pages in others))
        shifts = first_pages - run_starts // PAGE_TOKENS
        if shifts.any():
            columns = shifts[:, None] + np.arange(width)
            is_own = (columns >= 0) & (columns < self._pages.shape[1])
            # What lies beyond a context may be any page: that of others, whose columns mean nothing here, is the first.
            page_table = self._pages[index[:, None], columns * is_own]
        else:
            self._widen(width)
            page_table = self._pages[:, :width].take(index, 0)
        for i, pages in others:
            page_table[i, : len(pages)] = pages
        return DraftPages(starts, first_pages, page_table), is_there

    def _place_slowly(
        self, rows: list[int], which: range | list[int], starts: Int64Array, counts: Int64Array
    ) -> Places:
        firsts = np.cumsum(counts) - counts
        kept: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        for i in which:
            if rows[i] == NO_ROW:
                continue
            start, first = int(starts[i]), int(firsts[i])
            for placement in self._contexts.place(self.key(rows[i]), start, start + int(counts[i])):
                own = range(placement.start, placement.start + len(placement.slots))
                positions += own
                slots += placement.slots
                kept += range(first + own.start - start, first + own.stop - start)
            self._load(rows[i])
        return Places(*(np.array(x, np.int64) for x in (kept, positions, slots)))

    def _grow(self, index: Int64Array, counts: Int64Array, ends: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Positions and slots of features that follow right behind what is there, up to `ends`, for which there are
        pages."""
        self._runs[1, index] = ends
        positions = (ends - np.cumsum(counts)).repeat(counts)  # [num_features]
        positions += np.arange(len(positions))
        page_numbers = positions // PAGE_TOKENS
        first_pages = index * self._pages.shape[1] - self._runs[0, index] // PAGE_TOKENS  # in the flat table
        slots = self._pages.ravel().take(first_pages.repeat(counts) + page_numbers) - page_numbers
        slots *= PAGE_TOKENS
        slots += positions
        return positions, slots

    def _add_pages(self, rows: list[int], ends: list[int]) -> list[int]:
        """Give the contexts of rows the next page, for positions up to `ends`. Returns the indices of those that need
        more, or must take it from others."""
        run_starts, _, page_ends, _ = self._runs[:, rows].tolist()
        which = [i for i, end in enumerate(ends) if end <= page_ends[i] + PAGE_TOKENS]
        wanted = [(self.key(rows[i]), page_ends[i] // PAGE_TOKENS) for i in which]
        lacking = dict.fromkeys(range(len(rows)))
        for i, (_, number), page in zip(which, wanted, self._contexts.add_pages(wanted), strict=True):
            if page is not None:
                column = number - run_starts[i] // PAGE_TOKENS
                self._widen(column + 1)
                self._pages[rows[i], column] = page
                self._runs[2, rows[i]] += PAGE_TOKENS
                del lacking[i]
        return list(lacking)

    def _reload_shortened(self) -> None:
        for key in self._contexts.shortened:
            self._load(self._rows[key])
        self._contexts.shortened.clear()

    def _load(self, row: int) -> None:
        """Copy what the context says."""
        run = self._contexts.newest_run(self.key(row))
        page_end = (run.start // PAGE_TOKENS + len(run.pages)) * PAGE_TOKENS
        self._runs[:, row] = (run.start, run.end, page_end, run.limit)
        self._widen(len(run.pages))
        self._pages[row, : len(run.pages)] = run.pages

    def _widen(self, num_pages: int) -> None:
        while num_pages > (width := self._pages.shape[1]):
            self._pages = np.pad(self._pages, ((0, 0), (0, width)))
