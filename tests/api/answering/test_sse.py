from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from pydantic import BaseModel
from starlette.requests import ClientDisconnect
from starlette.types import Message

from dspine_cluster.api.answering.sse import EventStream
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


async def test_an_event_that_is_ready_is_sent_as_it_is() -> None:
    async def events() -> AsyncGenerator[Event | bytes, None]:
        yield b'{"ready":1}'
        yield Event(text="a")

    body = await body_of(await EventStream.open(events()))
    assert body == 'data: {"ready":1}\n\ndata: {"text":"a"}\n\ndata: [DONE]\n\n'


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


async def test_a_stream_without_events_gets_comments_and_then_its_events() -> None:
    async def slow() -> AsyncGenerator[BaseModel, None]:
        await asyncio.sleep(0.15)
        yield Event(text="a")
        await asyncio.sleep(0.15)
        yield Event(text="b")

    body = await body_of(await EventStream.open(slow(), keep_alive_s=0.02))
    before, between = body.split('data: {"text":"a"}\n\n')
    assert before.startswith(": keep-alive\n\n")
    assert between.startswith(": keep-alive\n\n")
    lines = [line for line in body.split("\n\n") if line and not line.startswith(":")]
    assert lines == ['data: {"text":"a"}', 'data: {"text":"b"}', "data: [DONE]"]


async def test_a_failure_after_the_first_comment_is_sent_as_an_event() -> None:
    async def fails() -> AsyncGenerator[BaseModel, None]:
        await asyncio.sleep(0.05)
        raise EngineStoppedError("gone")
        yield Event(text="never")

    body = await body_of(await EventStream.open(fails(), keep_alive_s=0.01))
    assert '"code":"engine_stopped"' in body
    assert body.endswith("data: [DONE]\n\n")


async def test_cancelling_a_stream_that_has_not_begun_closes_its_events() -> None:
    closed = False

    async def hangs() -> AsyncGenerator[BaseModel, None]:
        nonlocal closed
        try:
            await asyncio.sleep(60)
            yield Event(text="never")
        finally:
            closed = True

    stream = await EventStream.open(hangs(), keep_alive_s=0.01)
    task = asyncio.create_task(body_of(stream))
    await asyncio.sleep(0.03)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed
