"""Which part of its time a replica has been busy lately."""

from __future__ import annotations

from dspine_cluster.core.sample_window import SampleWindow


class BusyMeter:
    """From the seconds that it was busy since its start, told now and then. Times are of one monotonic clock."""

    def __init__(self, now_s: float, window_s: float = 15.0) -> None:
        self._window_s = window_s
        self._samples = SampleWindow((now_s, 0.0))

    def ratio(self, now_s: float, busy_s: float) -> float:
        """Of the last `window_s`, or of as much as is known: in [0, 1]."""
        self._samples.add((now_s, busy_s))
        self._samples.forget(lambda sample: sample[0] <= now_s - self._window_s)
        first_s, first_busy_s = self._samples.first
        return min(1.0, max(0.0, busy_s - first_busy_s) / max(1e-3, now_s - first_s))
