from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
from pydantic import BaseModel
from starlette.requests import ClientDisconnect
from starlette.types import Message

from dspine_cluster.api.sse import EventStream
from dspine_cluster.errors import EngineStoppedError, OverloadedError


class Event(BaseModel):
    text: str
    unset: int | None = None


class Source:
    """Yields events, then raises; remembers whether it was closed."""

    def __init__(self, *texts: str, error: Exception | None = None) -> None:
        self.texts = texts
        self.error = error
        self.is_closed = False

    async def events(self) -> AsyncGenerator[BaseModel, None]:
        try:
            for text in self.texts:
                yield Event(text=text)
            if self.error is not None:
                raise self.error
        finally:
            self.is_closed = True


async def receive() -> Message:
    return {"type": "http.disconnect"}


async def body_of(stream: EventStream) -> str:
    parts: list[bytes] = []

    async def send(message: Message) -> None:
        parts.append(message.get("body", b""))

    await stream({"type": "http", "asgi": {"spec_version": "2.4"}}, receive, send)
    return b"".join(parts).decode()


async def test_each_event_is_one_data_line_and_the_last_is_done() -> None:
    stream = await EventStream.open(Source("a\nb", "é").events())
    assert await body_of(stream) == 'data: {"text":"a\\nb"}\n\ndata: {"text":"é"}\n\ndata: [DONE]\n\n'


async def test_a_failure_before_the_first_event_is_raised() -> None:
    source = Source(error=OverloadedError("full"))
    with pytest.raises(OverloadedError):
        await EventStream.open(source.events())
    assert source.is_closed


async def test_a_later_failure_is_sent_as_an_event() -> None:
    stream = await EventStream.open(Source("a", error=EngineStoppedError("gone")).events())
    lines = (await body_of(stream)).split("\n\n")
    assert lines[1].startswith('data: {"error":{"message":')
    assert lines[2] == "data: [DONE]"


async def test_events_are_closed_when_the_client_can_no_longer_be_reached() -> None:
    source = Source("a", "b", "c")
    stream = await EventStream.open(source.events())

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            raise ConnectionResetError

    with pytest.raises(ClientDisconnect):
        await stream({"type": "http", "asgi": {"spec_version": "2.4"}}, receive, send)
    assert source.is_closed
