"""Samples of counts that only grow, over which figures of the last while are taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Sample = TypeVar("Sample")


class SampleWindow(Generic[Sample]):
    """The samples that are kept, oldest first: from that one on is counted."""

    def __init__(self, *samples: Sample) -> None:
        self._samples = deque(samples)

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def first(self) -> Sample:
        return self._samples[0]

    @property
    def latest(self) -> Sample:
        return self._samples[-1]

    def last(self, is_early: Callable[[Sample], bool]) -> Sample:
        """The last of those that are early, or the first of all."""
        return next((sample for sample in reversed(self._samples) if is_early(sample)), self.first)

    def add(self, sample: Sample) -> None:
        self._samples.append(sample)

    def forget(self, has_left: Callable[[Sample], bool]) -> None:
        """Leave out the oldest ones, up to the last that `has_left`: from that one on is counted. The latest stays."""
        while len(self._samples) > 1 and has_left(self._samples[1]):
            self._samples.popleft()
