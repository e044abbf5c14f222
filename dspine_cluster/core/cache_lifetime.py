"""How long what is cached stays cached unless it is used, from counts of what was evicted."""

from __future__ import annotations

from math import inf


class CacheLifetime:
    """Things cached over things evicted a second, averaged over about `window_s`: pages, or checkpoints."""

    def __init__(self, window_s: float = 30.0) -> None:
        self._window_s = window_s
        self._last: tuple[float, int] | None = None
        self._evicted_per_s = 0.0
        self._num_cached = 0

    def note(self, now_s: float, num_evicted: int, num_cached: int) -> None:
        """Take in how many were evicted so far, which only grows, and how many are cached now."""
        if self._last is not None and now_s > self._last[0]:
            passed_s = now_s - self._last[0]
            rate = (num_evicted - self._last[1]) / passed_s
            weight = passed_s / (passed_s + self._window_s)
            self._evicted_per_s += weight * (rate - self._evicted_per_s)
        self._last = now_s, num_evicted
        self._num_cached = num_cached

    @property
    def seconds(self) -> float:
        """What is not used for so long is evicted; infinite while nothing has been."""
        return self._num_cached / self._evicted_per_s if self._evicted_per_s > 0 else inf
