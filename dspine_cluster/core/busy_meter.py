"""Which part of its time a replica has been busy lately."""

from __future__ import annotations

from collections import deque


class BusyMeter:
    """From the seconds that it was busy since its start, told now and then. Times are of one monotonic clock."""

    def __init__(self, now_s: float, window_s: float = 15.0) -> None:
        self._window_s = window_s
        self._samples = deque([(now_s, 0.0)])

    def ratio(self, now_s: float, busy_s: float) -> float:
        """Of the last `window_s`, or of as much as is known: in [0, 1]."""
        self._samples.append((now_s, busy_s))
        while len(self._samples) > 2 and self._samples[1][0] <= now_s - self._window_s:
            self._samples.popleft()
        first_s, first_busy_s = self._samples[0]
        return min(1.0, max(0.0, busy_s - first_busy_s) / max(1e-3, now_s - first_s))
