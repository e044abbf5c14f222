"""Where the outputs of one request go: from the loop's thread to whoever streams them."""

from __future__ import annotations

import asyncio

from dspine_cluster.types import RoundOutput


class Sink:
    """Keeps what has not been taken. Used in its event loop alone."""

    def __init__(self, event_loop: asyncio.AbstractEventLoop) -> None:
        self.event_loop = event_loop
        self._outputs: list[RoundOutput] = []
        self._failure: Exception | None = None
        self._has_news = asyncio.Event()

    def __len__(self) -> int:
        return len(self._outputs)

    def put(self, item: RoundOutput | Exception) -> None:
        if isinstance(item, Exception):
            self._failure = item
        else:
            self._outputs.append(item)
        self._has_news.set()

    async def take(self) -> list[RoundOutput]:
        """Everything that has come, in order; waits for the first. Whoever is slower than the rounds gets several at
        once. Raises what was put instead of an output, after what came before."""
        await self._has_news.wait()
        self._has_news.clear()
        if self._outputs:
            outputs, self._outputs = self._outputs, []
            if self._failure is not None:
                self._has_news.set()
            return outputs
        assert self._failure is not None
        raise self._failure
