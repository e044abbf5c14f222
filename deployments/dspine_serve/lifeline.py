"""Waiting for a replica no longer than it lives."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


class Lifeline:
    """What one stream waits with. Whoever learns that the replica is gone cuts it; a replica that hangs never says so.

    One task waits at a time, in the event loop in which it is cut.
    """

    def __init__(self) -> None:
        self._is_cut = False
        self._waiting: asyncio.Timeout | None = None

    def cut(self) -> None:
        """End the present wait, and every later one at once."""
        self._is_cut = True
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(asyncio.get_running_loop().time())

    async def wait(self, awaitable: Awaitable[T], timeout_s: float | None = None) -> T:
        """The result of `awaitable`.

        Raises:
            TimeoutError: there was none in time, or the lifeline is cut; `awaitable` is cancelled.
        """
        try:
            async with asyncio.timeout(0 if self._is_cut else timeout_s) as self._waiting:
                return await awaitable
        finally:
            self._waiting = None
