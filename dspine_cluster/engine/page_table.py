"""The pages of running requests as one matrix, so that a pass looks its rows up rather than gathering lists."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dspine_cluster.types import PAGE_TOKENS

_MIN_PAGES = 64

IntArray = npt.NDArray[np.int64]

_COUNTING: IntArray = np.arange(1 << 14)
"""Made once: for a few numbers `arange` takes longer than a slice."""


class PageTable:
    """A row for each state slot. Whoever changes a request's pages has its row written anew before its next pass."""

    def __init__(self, num_slots: int) -> None:
        self.rows = np.zeros((num_slots, _MIN_PAGES), np.int32)
        """[num_slots, max_pages]; page i holds positions 16 i .. 16 i + 15. Zero past a request's pages."""
        self._shifts = np.zeros((num_slots, _MIN_PAGES), np.int64)
        """[num_slots, max_pages]: where a position of page i is stored, page * 16 + offset, less the position."""
        self._num_pages = [0] * num_slots

    def write(self, slot: int, pages: Sequence[int], first: int = 0) -> None:
        """Take the pages of the request that has the slot now; those before index `first` are as they were."""
        num_pages, num_before = len(pages), self._num_pages[slot]
        while num_pages > self.rows.shape[1]:
            more = ((0, 0), (0, self.rows.shape[1]))
            self.rows, self._shifts = np.pad(self.rows, more), np.pad(self._shifts, more)
        if first == num_pages - 1:  # as most often; an element is cheaper than a slice
            self.rows[slot, first] = pages[first]
            self._shifts[slot, first] = (pages[first] - first) * PAGE_TOKENS
        else:
            new = self.rows[slot, first:num_pages]
            new[:] = pages[first:]
            self._shifts[slot, first:num_pages] = (new - np.arange(first, num_pages)) * PAGE_TOKENS
        if num_pages < num_before:
            self.rows[slot, num_pages:num_before] = 0
        self._num_pages[slot] = num_pages

    def places(self, numbers: IntArray, starts: IntArray, lengths: IntArray) -> tuple[IntArray, IntArray]:
        """The positions starts[i] .. starts[i] + lengths[i] - 1 of every i, one after the other, and where each is
        stored, page * 16 + offset. Request i has the row `numbers[i]`."""
        firsts = starts + lengths
        firsts -= np.add.accumulate(lengths)
        positions = firsts.repeat(lengths)
        num_rows = len(positions)
        positions += _COUNTING[:num_rows] if num_rows <= len(_COUNTING) else np.arange(num_rows)
        # One index into all rows: numpy is slow to begin with two.
        pages = positions // PAGE_TOKENS
        pages += (numbers * self._shifts.shape[1]).repeat(lengths)
        slots = self._shifts.reshape(-1)[pages]
        slots += positions
        return positions, slots
