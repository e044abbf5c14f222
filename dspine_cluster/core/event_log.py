"""Numbered events, the latest of which are kept for readers that come back."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Generic, TypeVar

Event = TypeVar("Event")


class EventLog(Generic[Event]):
    """Event number s, counted from 1, is the s-th that was ever appended; the last `max_events` are kept."""

    def __init__(self, max_events: int) -> None:
        assert max_events > 0
        self._events: deque[Event] = deque(maxlen=max_events)
        self._last = 0

    @property
    def last(self) -> int:
        """Number of the latest event; 0 when there is none yet."""
        return self._last

    def append(self, event: Event) -> None:
        self._events.append(event)
        self._last += 1

    def after(self, sequence: int) -> list[Event] | None:
        """The events after number `sequence`; None when some of them are gone, or there was no such number."""
        num_missed = self._last - sequence
        if not 0 <= num_missed <= len(self._events):
            return None
        return list(islice(reversed(self._events), num_missed))[::-1]
