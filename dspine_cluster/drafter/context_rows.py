"""The contexts of all attached requests in columns, so that a round's features and drafts cost next to nothing each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dspine_cluster.core.draft_context import DraftContextTable
from dspine_cluster.drafter.client import NO_ROW, RequestKey
from dspine_cluster.transport.messages import Int64Array
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
    page_table: Int64Array  # [B, num_pages]; what lies beyond a context may be any page

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
        self._runs = np.zeros((5, _NUM_ROWS), np.int64)
        """Of the newest run: its start, its end, the end of its last page, `NewestRun.limit`, and its first page."""
        self._runs[1, NO_ROW] = -1  # nothing ever follows right behind what nobody has
        self._pages = np.zeros((_NUM_ROWS, _NUM_PAGES), np.int64)
        """Of the newest run."""
        self._last_rows: list[int] = []
        self._last_index = np.zeros(0, np.int64)
        """The same as an array: rounds mostly have the rows of those before."""
        self._are_distinct = True
        """Whether none of them comes twice."""

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
        index = self._index_of(rows)
        if not self._are_distinct:
            return self._place_slowly(rows, range(len(rows)), starts, counts)
        ends = starts + counts
        _, run_ends, page_ends, limits, first_pages = self._runs.take(index, 1)
        fits = (starts == run_ends) & (ends <= limits)
        which = (fits & (ends > page_ends)).nonzero()[0]
        if which.size:
            fits[which] = self._add_pages(index[which], ends[which])
        if np.count_nonzero(fits) == len(rows):
            return Places(None, *self._grow(index, first_pages, counts, ends))
        positions, slots = self._grow(index[fits], first_pages[fits], counts[fits], ends[fits])
        kept = np.repeat(fits, counts).nonzero()[0]
        slow = self._place_slowly(rows, (~fits).nonzero()[0].tolist(), starts, counts)
        assert slow.kept is not None
        parts = ((kept, slow.kept), (positions, slow.positions), (slots, slow.slots))
        return Places(*(np.concatenate(part) for part in parts))

    def find(self, rows: list[int], positions: Int64Array) -> tuple[DraftPages, npt.NDArray[np.bool_]]:
        """The contexts of blocks anchored at `positions`, and which of them there are: only where the feature before
        the anchor is there."""
        self._reload_shortened()
        index = self._index_of(rows)
        run_starts, run_ends, _, _, run_first_pages = self._runs.take(index, 1)
        starts = np.maximum(run_starts, positions - self._contexts.max_context_tokens)
        first_pages = starts // PAGE_TOKENS
        shifts = first_pages - run_first_pages
        num_pages = positions + (PAGE_TOKENS - 1)
        num_pages //= PAGE_TOKENS
        num_pages -= first_pages
        is_there = positions == run_ends
        others: list[tuple[int, Sequence[int]]] = []
        if np.count_nonzero(is_there) < len(rows):
            for i in (~is_there).nonzero()[0].tolist():
                num_pages[i] = 0
                context = self._contexts.usable(self.key(rows[i]), int(positions[i]))
                if context is not None:
                    is_there[i] = True
                    starts[i], first_pages[i] = context.start, context.first_page
                    others.append((i, context.pages))
        width = max(1, int(num_pages.max()), *(len(pages) for _, pages in others))
        self._widen(width)
        if np.count_nonzero(shifts):
            columns = shifts[:, None] + np.arange(width)
            is_own = (columns >= 0) & (columns < self._pages.shape[1])
            # What lies beyond a context may be any page: that of others, whose columns mean nothing here, is the first.
            page_table = self._pages[index[:, None], columns * is_own]
        else:
            page_table = self._pages[index, :width]
        for i, pages in others:
            page_table[i, : len(pages)] = pages
        return DraftPages(starts, first_pages, page_table), is_there

    def _index_of(self, rows: list[int]) -> Int64Array:
        if rows != self._last_rows:
            self._last_rows, self._last_index = rows, np.array(rows, np.int64)
            self._are_distinct = len(set(rows)) == len(rows)
        return self._last_index

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

    def _grow(
        self, index: Int64Array, first_pages: Int64Array, counts: Int64Array, ends: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """Positions and slots of features that follow right behind what is there, up to `ends`, for which there are
        pages."""
        self._runs[1][index] = ends
        positions = (ends - counts.cumsum()).repeat(counts)  # [num_features]
        positions += np.arange(len(positions))
        page_numbers = positions // PAGE_TOKENS
        tables = index * self._pages.shape[1]  # where page number 0 would lie in the flat table
        tables -= first_pages
        places = tables.repeat(counts)
        places += page_numbers
        slots = self._pages.ravel().take(places)
        slots -= page_numbers
        slots *= PAGE_TOKENS
        slots += positions
        return positions, slots

    def _add_pages(self, index: Int64Array, ends: Int64Array) -> npt.NDArray[np.bool_]:
        """Give the contexts of rows the next page, for positions up to `ends`. Returns for which that is enough; others
        need more, or must take it from others."""
        _, _, page_ends, _, first_pages = self._runs.take(index, 1)
        is_enough: npt.NDArray[np.bool_] = ends <= page_ends + PAGE_TOKENS
        if np.count_nonzero(is_enough) < len(index):
            index, first_pages, page_ends = index[is_enough], first_pages[is_enough], page_ends[is_enough]
        numbers = page_ends // PAGE_TOKENS
        wanted = [
            (self.key(row), number) for row, number in zip(index.tolist(), numbers.tolist(), strict=True)
        ]
        pages = self._contexts.add_pages(wanted)
        if len(pages) < len(index):
            is_enough[is_enough.nonzero()[0][len(pages) :]] = False
            index, numbers, first_pages = (array[: len(pages)] for array in (index, numbers, first_pages))
        if pages:
            columns = numbers - first_pages
            self._widen(int(columns.max()) + 1)
            self._pages[index, columns] = pages
            self._runs[2][index] = (numbers + 1) * PAGE_TOKENS
        return is_enough

    def _reload_shortened(self) -> None:
        for key in self._contexts.shortened:
            self._load(self._rows[key])
        self._contexts.shortened.clear()

    def _load(self, row: int) -> None:
        """Copy what the context says."""
        run = self._contexts.newest_run(self.key(row))
        first_page = run.start // PAGE_TOKENS
        page_end = (first_page + len(run.pages)) * PAGE_TOKENS
        self._runs[:, row] = (run.start, run.end, page_end, run.limit, first_page)
        self._widen(len(run.pages))
        self._pages[row, : len(run.pages)] = run.pages

    def _widen(self, num_pages: int) -> None:
        while num_pages > (width := self._pages.shape[1]):
            self._pages = np.pad(self._pages, ((0, 0), (0, width)))
