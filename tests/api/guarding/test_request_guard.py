from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest
from starlette.types import Message, Receive, Scope, Send

from dspine_cluster.api.guarding.request_guard import RequestGuard

HTTP: Scope = {"type": "http", "method": "POST", "path": "/", "headers": []}


class Client:
    """Sends its body in parts, then disconnects when told to."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        parts = list(parts)
        self.messages: list[Message] = [
            {"type": "http.request", "body": part, "more_body": index < len(parts) - 1}
            for index, part in enumerate(parts)
        ]
        self.gone = asyncio.Event()
        self.received: list[Message] = []

    async def receive(self) -> Message:
        if self.messages:
            return self.messages.pop(0)
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.received.append(message)


async def answer(send: Send, body: bytes) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


async def test_the_app_gets_the_whole_body_in_one_message() -> None:
    async def echo(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, (await receive())["body"])

    client = Client([b"ab", b"", b"cd"])
    await RequestGuard(echo, 4)(HTTP, client.receive, client.send)
    assert client.received[-1]["body"] == b"abcd"


async def test_a_large_body_never_reaches_the_app() -> None:
    async def never(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("called")

    client = Client([b"abc", b"de", b"unread"])
    await RequestGuard(never, 4)(HTTP, client.receive, client.send)
    assert client.received[0]["status"] == 413
    assert len(client.messages) == 1


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([(b"content-encoding", b"gzip")], 415),
        ([(b"content-encoding", b"Identity")], 200),
        ([(b"x-large", b"a" * 65_536)], 431),
        ([(b"x-small", b"a")] * 10_000, 431),
        ([(b"x-small", b"a")] * 1_000, 200),
    ],
)
async def test_headers_are_looked_at_before_the_body(headers: list[tuple[bytes, bytes]], status: int) -> None:
    async def ok(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, b"")

    client = Client([b"ab"])
    await RequestGuard(ok, 4)({**HTTP, "headers": headers}, client.receive, client.send)
    assert client.received[0]["status"] == status
    assert bool(client.messages) == (status != 200)


async def test_a_disconnect_cancels_the_app() -> None:
    cancelled = False

    async def wait_forever(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal cancelled
        client.gone.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled = True
            raise

    client = Client([b""])
    await RequestGuard(wait_forever, 4)(HTTP, client.receive, client.send)
    assert cancelled


async def test_a_disconnect_within_the_body_ends_the_request() -> None:
    async def never(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("called")

    client = Client([b"ab", b"cd"])
    client.messages[1] = {"type": "http.disconnect"}
    await RequestGuard(never, 10)(HTTP, client.receive, client.send)
    assert client.received == []


async def test_work_after_the_answer_is_finished_although_the_client_is_gone() -> None:
    finished = False

    async def tidy_up(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal finished
        await answer(send, b"x")
        client.gone.set()
        await asyncio.sleep(0.02)
        finished = True

    client = Client([b""])
    await RequestGuard(tidy_up, 4)(HTTP, client.receive, client.send)
    assert finished


async def test_cancelling_the_request_cancels_the_app() -> None:
    started = asyncio.Event()
    cancelled = asyncio.Event()

    async def wait_forever(scope: Scope, receive: Receive, send: Send) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    client = Client([b""])
    request = asyncio.create_task(RequestGuard(wait_forever, 4)(HTTP, client.receive, client.send))
    await started.wait()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert cancelled.is_set()


async def test_failures_of_the_app_are_raised() -> None:
    async def fail(scope: Scope, receive: Receive, send: Send) -> None:
        raise ValueError("broken")

    client = Client([b""])
    with pytest.raises(ValueError, match="broken"):
        await RequestGuard(fail, 4)(HTTP, client.receive, client.send)


async def test_a_body_that_does_not_come_in_time_is_refused() -> None:
    async def never(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("called")

    client = Client([b"ab", b"cd"])
    client.messages[1:] = []
    await RequestGuard(never, 10, body_timeout_s=0.02)(HTTP, client.receive, client.send)
    assert client.received[0]["status"] == 408


async def test_a_body_that_is_announced_as_too_large_is_not_read() -> None:
    async def never(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("called")

    client = Client([b"unread"])
    scope = {**HTTP, "headers": [(b"content-length", b"11")]}
    await RequestGuard(never, 10)(scope, client.receive, client.send)
    assert client.received[0]["status"] == 413
    assert len(client.messages) == 1
