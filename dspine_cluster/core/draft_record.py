"""The pages and positions of one request's draft context, and what is told of them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from dspine_cluster.core.page_hash import PageKey
from dspine_cluster.core.position_ranges import PositionRanges
from dspine_cluster.types import PAGE_TOKENS


@dataclass(slots=True)
class Placement:
    """Where the rows of positions `start`, `start + 1`, ... belong: one slot (page * 16 + offset) each."""

    start: int
    slots: list[int]


@dataclass(slots=True)
class UsableContext:
    """The contiguous run of positions from `start` up to an anchor, and the pages that hold it."""

    start: int
    first_page: int
    """Page number, in the request, of `pages[0]`: it holds positions from 16 * first_page."""
    pages: Sequence[int]


@dataclass(slots=True)
class NewestRun:
    """The contiguous run of positions `start` .. `end` - 1 that ends with a context's newest."""

    start: int
    end: int
    pages: list[int]
    """Those that hold it."""
    limit: int
    """The end up to which it may be grown by itself: beyond it pages are let go of, or are to be shared."""


@dataclass(slots=True)
class DraftRecord:
    """What one request has of its draft context."""

    keys: list[PageKey]
    """Keys of the request's first pages."""
    pages: dict[int, int] = field(default_factory=dict)
    """Page number in the request -> page of the pool. Changed by `put` and `drop` alone."""
    lowest: int = 0
    """The first page number, if there is any."""
    run: array[int] = field(default_factory=lambda: array("i"))
    """The pages from number `run_start` on, as far as they have been asked for: int32, as a page table takes them."""
    run_start: int = 0
    positions: PositionRanges = field(default_factory=PositionRanges)
    is_trusted: bool = True
    """Whether others may use its pages."""

    def put(self, number: int, page: int) -> None:
        """Have `page` as page `number`."""
        if number in self.pages:
            self.run = array("i")
        if not self.pages or number < self.lowest:
            self.lowest = number
        self.pages[number] = page

    def drop(self, number: int) -> int:
        """Have page `number` no longer; gives what it was."""
        page = self.pages.pop(number)
        self.run = array("i")
        if number == self.lowest and self.pages:
            self.lowest = number + 1 if number + 1 in self.pages else min(self.pages)
        return page

    def pages_from(self, first: int, last: int) -> array[int]:
        """Pages number `first` .. `last`, all of which it has."""
        if self.run_start != first or len(self.run) > last - first + 1:
            self.run, self.run_start = array("i"), first
        self.run.extend([self.pages[number] for number in range(first + len(self.run), last + 1)])
        return self.run[:]

    def has_whole_page(self, number: int) -> bool:
        end = (number + 1) * PAGE_TOKENS
        return self.positions.run_before(end) <= end - PAGE_TOKENS
