"""Server-sent events: one `data:` line an event, `[DONE]` at the end."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from dspine_cluster.api.errors import describe

_DONE = b"data: [DONE]\n\n"


class EventStream(StreamingResponse):
    """Sends the events of a generator, and closes the generator on every path.

    A failure after the first event can no longer change the status: it is sent as an event that holds the error.
    """

    media_type = "text/event-stream"

    def __init__(self, first: BaseModel, rest: AsyncGenerator[BaseModel, None]) -> None:
        self._events = rest
        super().__init__(
            _frames(first, rest), headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        )

    @classmethod
    async def open(cls, events: AsyncGenerator[BaseModel, None]) -> EventStream:
        """Waits for the first event, so that what goes wrong before it is raised here and gets its own status."""
        try:
            first = await anext(events)
        except BaseException:
            await events.aclose()
            raise
        return cls(first, events)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events):
            await super().__call__(scope, receive, send)


async def _frames(first: BaseModel, rest: AsyncGenerator[BaseModel, None]) -> AsyncIterator[bytes]:
    yield _frame(first)
    try:
        async for event in rest:
            yield _frame(event)
    except Exception as error:
        yield _frame(describe(error).body())
    yield _DONE


def _frame(event: BaseModel) -> bytes:
    return b"data: " + event.model_dump_json(exclude_unset=True).encode() + b"\n\n"
