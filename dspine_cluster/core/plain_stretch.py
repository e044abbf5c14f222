"""Passes that decode plainly one after the other while nothing changes: a policy looks at the last of them alone."""

from __future__ import annotations

from collections.abc import Sequence

_NUM_PASSES = 8


class PlainStretch:
    """What a policy does in a pass takes time, and pushes out of the caches what the next pass needs. The last pass of
    a stretch follows others that were not looked at, and so takes what they do."""

    def __init__(self, num_passes: int = _NUM_PASSES) -> None:
        self._num_passes = num_passes
        self._num_left = 0
        self._num_unseen = 0
        self._uids: list[int] = []

    @property
    def is_on(self) -> bool:
        """Whether the present pass belongs to a stretch."""
        return self._num_left > 0

    def begin(self, uids: Sequence[int]) -> None:
        """The next passes decode these requests plainly, unless `end` comes first."""
        self._num_left, self._uids = self._num_passes, [*uids]

    def end(self) -> None:
        """Something has changed."""
        self._num_left = 0

    def goes_on(self, uids: Sequence[int]) -> bool:
        """Whether the next pass, if it is of these requests, belongs to it."""
        return self._num_left > 0 and [*uids] == self._uids

    def skip_pass(self) -> bool:
        """A pass of the stretch has ended. Returns whether it needs no look: only the last one does."""
        self._num_left -= 1
        self._num_unseen += self._num_left > 0
        return self._num_left > 0

    def take_unseen(self) -> int:
        """How many passes were not looked at since this was last asked."""
        num_unseen, self._num_unseen = self._num_unseen, 0
        return num_unseen
