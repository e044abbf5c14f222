"""Which features exist: passes leave them out while nothing is drafted."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dspine_cluster.types import PAGE_TOKENS


class FeatureRecord:
    """Which rows of a feature pool hold no features of the tokens whose K/V lies beside them."""

    def __init__(self, num_pages: int) -> None:
        self._is_missing = np.zeros((num_pages, PAGE_TOKENS), bool)
        self.has_gaps = False
        """Whether features were ever left out. Where not, nobody needs to be told of what is there."""

    def note(self, slots: npt.NDArray[np.int64], *, is_there: bool) -> None:
        """A pass stored K/V in `slots` (page * 16 + offset), with features or without."""
        self._is_missing.reshape(-1)[slots] = not is_there
        self.has_gaps = self.has_gaps or not is_there

    def copy_page(self, source: int, target: int) -> None:
        """The features of a page were copied."""
        self._is_missing[target] = self._is_missing[source]

    def complete_page(self, source: int, target: int) -> list[int]:
        """A page gets what it lacks and `source` has: the offsets in the page whose features are to be copied."""
        if not self.has_gaps:
            return []
        gained = self._is_missing[target] & ~self._is_missing[source]
        self._is_missing[target] &= ~gained
        return np.flatnonzero(gained).tolist()

    def start_before(self, pages: npt.NDArray[np.int32], end: int) -> int:
        """The first position from which on features of all positions before `end` exist, of a request that has
        `pages`; `end` itself where that of the one before it is missing."""
        if not self.has_gaps or end == 0:
            return 0
        numbers = pages[: (end - 1) // PAGE_TOKENS + 1]
        missing = np.flatnonzero(self._is_missing[numbers].reshape(-1)[:end])
        return int(missing[-1]) + 1 if len(missing) else 0
