"""Sends to a client that may have stopped to read."""

from __future__ import annotations

import asyncio
from math import inf
from types import TracebackType

from starlette.types import Message, Send


class PatientSend:
    """Waits for a client no longer than about `timeout_s`. One timer watches over all messages of an answer: one for
    each would cost a good part of what passing it on does."""

    def __init__(self, send: Send, timeout_s: float) -> None:
        self._send = send
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[object] | None = None
        self._since_s = inf
        """When the message was given that is being sent."""
        self._is_late = False
        self._timer = self._watch_again()

    async def __call__(self, message: Message) -> None:
        """Raises TimeoutError when the client does not take it; then nothing more may be sent."""
        task = self._task = asyncio.current_task()
        self._since_s = self._loop.time()
        try:
            await self._send(message)
        except asyncio.CancelledError:
            if not self._is_late or (task is not None and task.uncancel() > 0):
                raise
            raise TimeoutError from None
        finally:
            self._since_s = inf

    def __enter__(self) -> PatientSend:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._timer.cancel()

    def _watch_again(self) -> asyncio.TimerHandle:
        return self._loop.call_later(self._timeout_s / 4, self._watch)

    def _watch(self) -> None:
        if self._loop.time() - self._since_s < self._timeout_s:
            self._timer = self._watch_again()
            return
        self._is_late = True
        assert self._task is not None
        self._task.cancel()
