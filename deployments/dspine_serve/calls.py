"""Calls between replicas that do not wait for ever."""

from __future__ import annotations

import asyncio
from typing import Any


async def within(timeout_s: float, response: Any) -> Any:
    """The result of a handle's response; cancels the call after `timeout_s`.

    Raises:
        TimeoutError: no replica answered in time.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await response
    except (TimeoutError, asyncio.CancelledError):
        response.cancel()
        raise
