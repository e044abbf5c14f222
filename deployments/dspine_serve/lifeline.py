"""Waiting for a replica no longer than it lives."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


class Lifeline:
    """What one stream waits with. A replica that hangs never says so: whoever learns that one may be gone limits how
    long it may take to send something. One task waits at a time, in the event loop in which the limit is set."""

    def __init__(self) -> None:
        self._limit_s: float | None = None
        self._waiting: asyncio.Timeout | None = None
        self._give_up_at_s: float | None = None
        """Of the present wait, by what its caller asked for."""

    def limit(self, limit_s: float | None) -> None:
        """End the present wait `limit_s` from now, and later ones after as long; None ends no more than was asked for.
        With 0 only what is there already is given."""
        self._limit_s = limit_s
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(self._deadline_s())

    async def wait(self, awaitable: Awaitable[T], timeout_s: float | None = None) -> T:
        """The result of `awaitable`.

        Raises:
            TimeoutError: there was none in time; `awaitable` is cancelled.
        """
        now_s = asyncio.get_running_loop().time()
        self._give_up_at_s = None if timeout_s is None else now_s + timeout_s
        try:
            async with asyncio.timeout_at(self._deadline_s()) as self._waiting:
                return await awaitable
        finally:
            self._waiting = None

    def _deadline_s(self) -> float | None:
        """When the present wait ends, in the event loop's time."""
        if self._limit_s is None:
            return self._give_up_at_s
        limited_s = asyncio.get_running_loop().time() + self._limit_s
        return limited_s if self._give_up_at_s is None else min(limited_s, self._give_up_at_s)
