"""A clock for judging the silence of others: time during which oneself was stopped does not count."""

from __future__ import annotations

import time
from collections.abc import Callable


class AwakeClock:
    """Monotonic seconds. It is asked at least every `max_gap_s` unless its process is stopped or starved; of a longer
    gap only `max_gap_s` passes, because what others have sent meanwhile has not been read yet."""

    def __init__(self, max_gap_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_gap_s = max_gap_s
        self._clock = clock
        self._asked_at_s = clock()
        self._now_s = 0.0

    def __call__(self) -> float:
        """Seconds since its creation."""
        asked_at_s = self._clock()
        self._now_s += min(asked_at_s - self._asked_at_s, self._max_gap_s)
        self._asked_at_s = asked_at_s
        return self._now_s
