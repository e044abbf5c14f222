"""The least loaded first, without a scan."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from random import Random

_Entry = tuple[float, float, str, int]
"""(cost, random number that mixes equals, name, version)"""


class LoadOrder:
    """Names by cost. Changing a cost and asking for the cheapest take time logarithmic in their number."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._heap: list[_Entry] = []
        self._current: dict[str, _Entry] = {}
        self._version = 0

    def __len__(self) -> int:
        return len(self._current)

    def __contains__(self, name: str) -> bool:
        return name in self._current

    def set(self, name: str, cost: float) -> None:
        """Add a name, or change its cost."""
        current = self._current.get(name)
        if current is not None and current[0] == cost:
            return
        self._version += 1
        entry = (cost, self._random.random(), name, self._version)
        self._current[name] = entry
        heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._current) + 64:
            self._heap = list(self._current.values())
            heapify(self._heap)

    def discard(self, name: str) -> None:
        """Take out a name; harmless when it is not there."""
        self._current.pop(name, None)

    def cheapest(self, count: int, accepts: Callable[[str], bool] = lambda _: True) -> list[str]:
        """Up to `count` accepted names, cheapest first; equals in an order that is random but for a time the same."""
        taken: list[_Entry] = []
        names: list[str] = []
        while self._heap and len(names) < count:
            entry = heappop(self._heap)
            if self._current.get(entry[2]) is not entry:
                continue
            taken.append(entry)
            if accepts(entry[2]):
                names.append(entry[2])
        for entry in taken:
            heappush(self._heap, entry)
        return names
