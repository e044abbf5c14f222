"""Server-sent events: one `data:` line an event, comments while there is none, `[DONE]` at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import Response
from pydantic import BaseModel
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from dspine_cluster.api.errors import describe


class NamedEvent(BaseModel):
    """An event that is sent under its type as its name."""

    type: str


Event = BaseModel | bytes
"""Bytes are the JSON of one that has no name."""

_EVENT = {
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}
DOCUMENTED: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": _EVENT}}}}
"""What the OpenAPI document says of an answer that may also be streamed."""
_DONE = b"data: [DONE]\n\n"
_COMMENT = b": keep-alive\n\n"
_KEEP_ALIVE_S = 10.0
_MAX_FRAMES = 64
"""Made ahead of a client that does not read."""


class EventStream(Response):
    """Sends the events of a generator, and closes the generator on every path.

    A failure after the status has been sent can no longer change it: it is sent as an event that holds the error.
    """

    media_type = "text/event-stream"

    def __init__(
        self, first: asyncio.Task[Event], rest: AsyncGenerator[Event, None], keep_alive_s: float
    ) -> None:
        self._first = first
        self._events = rest
        self._keep_alive_s = keep_alive_s
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]

    @classmethod
    async def open(
        cls, events: AsyncGenerator[Event, None], keep_alive_s: float = _KEEP_ALIVE_S
    ) -> EventStream:
        """Waits for the first event, so that what goes wrong before it is raised here and gets its own status; but no
        longer than `keep_alive_s`, after which every such while without an event gets a comment."""
        first = asyncio.ensure_future(_next(events))
        try:
            await asyncio.wait((first,), timeout=keep_alive_s)
            if first.done():
                first.result()
        except BaseException:
            await _close(first, events)
            raise
        return cls(first, events, keep_alive_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises ClientDisconnect when the client can no longer be reached."""
        writing: asyncio.Task[None] | None = None
        try:
            await _send(
                send,
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers},
            )
            if not self._first.done():
                await _send_body(send, _COMMENT)
            frames = _Frames()
            writing = asyncio.ensure_future(self._write(frames))
            while (body := await frames.take(self._keep_alive_s)) is not None:
                await _send_body(send, body or _COMMENT)
        finally:
            if writing is not None:
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)
            await _close(self._first, self._events)
        await _send(send, {"type": "http.response.body", "body": _DONE})

    async def _write(self, frames: _Frames) -> None:
        try:
            event: Event | None = await self._first
            while event is not None:
                await frames.put(_frame(event))
                event = await anext(self._events, None)
        except Exception as error:
            await frames.put(_frame(describe(error).body()))
        frames.end()


class _Frames:
    """Frames on their way: those that are made before the sender has its turn are sent together."""

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._has_ended = False
        self._has_news = asyncio.Event()
        self._has_room = asyncio.Event()

    async def put(self, frame: bytes) -> None:
        """Waits while a slow client has not taken what is there."""
        self._frames.append(frame)
        self._has_news.set()
        if len(self._frames) >= _MAX_FRAMES:
            self._has_room.clear()
            await self._has_room.wait()

    def end(self) -> None:
        self._has_ended = True
        self._has_news.set()

    async def take(self, timeout_s: float) -> bytes | None:
        """All frames that are there; nothing when none has come in time, None after the last."""
        if not self._has_news.is_set():
            try:
                async with asyncio.timeout(timeout_s):
                    await self._has_news.wait()
            except TimeoutError:
                return b""
        if not self._frames:
            return None
        if not self._has_ended:
            self._has_news.clear()
        body = b"".join(self._frames)
        self._frames.clear()
        self._has_room.set()
        return body


async def _next(events: AsyncGenerator[Event, None]) -> Event:
    return await anext(events)


async def _close(first: asyncio.Task[Event], events: AsyncGenerator[Event, None]) -> None:
    first.cancel()
    async with aclosing(events):
        await asyncio.gather(first, return_exceptions=True)


async def _send_body(send: Send, frame: bytes) -> None:
    await _send(send, {"type": "http.response.body", "body": frame, "more_body": True})


async def _send(send: Send, message: Message) -> None:
    try:
        await send(message)
    except OSError as error:
        raise ClientDisconnect from error


def _frame(event: Event) -> bytes:
    if isinstance(event, bytes):
        return b"data: " + event + b"\n\n"
    name = b"event: " + event.type.encode() + b"\n" if isinstance(event, NamedEvent) else b""
    return name + b"data: " + event.model_dump_json(exclude_unset=True).encode() + b"\n\n"
