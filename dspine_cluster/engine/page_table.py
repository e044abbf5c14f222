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
        self._num_pages = [0] * num_slots

    def write(self, slot: int, pages: Sequence[int], first: int = 0) -> None:
        """Take the pages of the request that has the slot now; those before index `first` are as they were."""
        num_pages, num_before = len(pages), self._num_pages[slot]
        while num_pages > self.rows.shape[1]:
            self.rows = np.pad(self.rows, ((0, 0), (0, self.rows.shape[1])))
        if first == num_pages - 1:  # as most often; an element is cheaper than a slice
            self.rows[slot, first] = pages[first]
        else:
            self.rows[slot, first:num_pages] = pages[first:]
        if num_pages < num_before:
            self.rows[slot, num_pages:num_before] = 0
        self._num_pages[slot] = num_pages


def pool_slots(
    page_rows: npt.NDArray[np.int32], numbers: IntArray, starts: IntArray, lengths: IntArray
) -> tuple[IntArray, IntArray]:
    """The positions starts[i] .. starts[i] + lengths[i] - 1 of every i, one after the other, and where each is stored:
    page * 16 + offset. Request i has the pages `page_rows[numbers[i]]`."""
    firsts = starts + lengths
    firsts -= np.add.accumulate(lengths)
    positions = firsts.repeat(lengths)
    num_rows = len(positions)
    positions += _COUNTING[:num_rows] if num_rows <= len(_COUNTING) else np.arange(num_rows)
    page_numbers = positions // PAGE_TOKENS
    # One index into all rows, and one type throughout: numpy is slow to begin with two of either.
    places = (numbers * page_rows.shape[1]).repeat(lengths)
    places += page_numbers
    slots = page_rows.reshape(-1)[places].astype(np.int64)
    slots -= page_numbers
    slots *= PAGE_TOKENS
    slots += positions
    return positions, slots
