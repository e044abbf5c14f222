"""Drafts that wait for their batch, in the order in which they were asked for."""

from __future__ import annotations

from itertools import compress, islice

import numpy as np
import numpy.typing as npt

from dspine_cluster.transport.messages import Draft
from dspine_cluster.transport.round_messages import NUM_DRAFT_COLUMNS


class AskQueue:
    """Requests are named by the loop's rows: small numbers, each of one open request."""

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._waiting: dict[int, None] = {}  # rows, oldest first
        self._numbers = np.zeros((NUM_DRAFT_COLUMNS, 0), np.int64)  # as in `Draft`, by row
        self._temperatures = np.zeros(0)
        self._last_rows: list[int] = []
        self._last: Draft | None = None
        """What was asked for these: mostly what is drafted next, as it came, or a part of it."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, rows: list[int], draft: Draft) -> npt.NDArray[np.bool_] | None:
        """Have what is asked for each row wait, in its old place where something waits already. Where that would be
        more blocks than may wait it is not taken.

        Returns which are not taken: bool [R], or None if all are.
        """
        waiting = self._waiting
        if len(waiting) + len(rows) <= self._max_blocks:
            waiting.update(dict.fromkeys(rows))
            self._keep(rows, draft)
            return None
        is_refused = np.zeros(len(rows), np.bool_)
        for i, row in enumerate(rows):
            if row in waiting or len(waiting) < self._max_blocks:
                waiting[row] = None
            else:
                is_refused[i] = True
        is_taken = ~is_refused
        if is_taken.any():
            self._keep(list(compress(rows, is_taken)), draft.part(is_taken))
        return is_refused if is_refused.any() else None

    def take(self, max_blocks: int) -> list[int]:
        """The rows of the next blocks, which wait no longer."""
        if len(self._waiting) <= max_blocks:
            rows, self._waiting = list(self._waiting), {}
            return rows
        rows = list(islice(self._waiting, max_blocks))
        for row in rows:
            del self._waiting[row]
        return rows

    def asked(self, rows: list[int]) -> Draft:
        """What was asked for last for each."""
        if self._last is not None and rows == self._last_rows:
            return self._last
        index = np.array(rows)
        return Draft(self._numbers.take(index, 1), self._temperatures.take(index))

    def discard(self, row: int) -> None:
        """The request has gone."""
        self._waiting.pop(row, None)

    def _keep(self, rows: list[int], draft: Draft) -> None:
        num_more = max(rows) + 1 - len(self._temperatures)
        if num_more > 0:
            num_more = max(num_more, len(self._temperatures))
            self._numbers = np.pad(self._numbers, ((0, 0), (0, num_more)))
            self._temperatures = np.pad(self._temperatures, (0, num_more))
        index = np.array(rows)
        self._numbers[:, index] = draft.numbers
        self._temperatures[index] = draft.temperatures
        self._last_rows, self._last = rows, draft
