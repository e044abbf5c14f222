"""Discrete events on a virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf


class Simulation:
    """Runs what was scheduled, in order of time; equal times in the order in which they were scheduled."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    @property
    def now_s(self) -> float:
        return self._now_s

    def after(self, delay_s: float, act: Callable[[], None]) -> None:
        """Call `act` when `delay_s` have passed."""
        assert delay_s >= 0
        heappush(self._events, (self._now_s + delay_s, next(self._numbers), act))

    def run(self, until_s: float = inf) -> None:
        """Run until nothing is left, or up to and at `until_s`."""
        while self._events and self._events[0][0] <= until_s:
            self._now_s, _, act = heappop(self._events)
            act()
        if until_s < inf:
            self._now_s = max(self._now_s, until_s)
