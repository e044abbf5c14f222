"""Passes that decode plainly one after the other while nothing changes: a policy looks at few of them."""

from __future__ import annotations

from collections.abc import Sequence

_EVERY_PASSES = 8


class PlainStretch:
    """What a policy does in a pass takes time, and pushes out of the caches what the next pass needs. Of the passes of
    stretches one in `every_passes` is looked at, however soon one stretch follows the other."""

    def __init__(self, every_passes: int = _EVERY_PASSES) -> None:
        self._every_passes = every_passes
        self._num_unseen = 0  # since the last that was looked at
        self._uids: list[int] = []

    @property
    def is_on(self) -> bool:
        """Whether the present pass belongs to a stretch."""
        return bool(self._uids)

    def begin(self, uids: Sequence[int]) -> None:
        """The next passes decode these requests plainly, until `end`."""
        self._uids = [*uids]

    def end(self) -> None:
        """Something has changed, or is looked at."""
        self._uids = []

    def goes_on(self, uids: Sequence[int]) -> bool:
        """Whether the next pass, if it is of these requests, belongs to it."""
        return self.is_on and [*uids] == self._uids

    def skip_pass(self) -> bool:
        """A pass of the stretch has ended. Returns whether it needs no look."""
        self._num_unseen = (self._num_unseen + 1) % self._every_passes
        return self._num_unseen > 0
