"""ASGI middleware: bounds the body, and stops the work of a request whose client has gone."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dspine_cluster.api.errors import (
    ApiError,
    body_too_large,
    body_too_slow,
    encoded_body,
    headers_too_large,
)

_MAX_HEADER_BYTES = 64 * 1024
"""The server that parses them does not limit them."""


class RequestGuard:
    """Reads the whole body, refuses it with status 413 beyond `max_body_bytes`, with 408 after `body_timeout_s`, and
    with 415 where it is compressed, which would hide its size. Then runs `app` and cancels it as soon as the client
    disconnects, whether it streams or is still waiting for its first token."""

    def __init__(self, app: ASGIApp, max_body_bytes: int, body_timeout_s: float = 30.0) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._body_timeout_s = body_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._body_timeout_s):
                body = await self._read(scope, receive)
        except _RefusedBodyError as error:
            await error.answer.response()(scope, receive, send)
            return
        except TimeoutError:
            await body_too_slow(self._body_timeout_s).response()(scope, receive, send)
            return
        if body is not None:
            await _run_while_connected(self._app, body, scope, receive, send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """The body; None when the client has gone.

        Raises:
            _RefusedBodyError: it, or its headers, are too large, or it is compressed; nothing of it is read where that
                is known before.
        """
        if sum(len(name) + len(value) for name, value in scope["headers"]) > _MAX_HEADER_BYTES:
            raise _RefusedBodyError(headers_too_large(_MAX_HEADER_BYTES))
        headers = Headers(scope=scope)
        encoding = headers.get("content-encoding", "identity").strip()
        if encoding.lower() not in ("", "identity"):
            raise _RefusedBodyError(encoded_body(encoding))
        announced = headers.get("content-length", "")
        if announced.isdecimal() and int(announced[:20]) > self._max_body_bytes:
            raise _RefusedBodyError(body_too_large(self._max_body_bytes))
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > self._max_body_bytes:
                raise _RefusedBodyError(body_too_large(self._max_body_bytes))
            if not message.get("more_body", False):
                return bytes(body)


class _RefusedBodyError(Exception):
    def __init__(self, answer: ApiError) -> None:
        super().__init__()
        self.answer = answer


async def _run_while_connected(app: ASGIApp, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
    pending_body: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    disconnected = asyncio.Event()
    is_answered = False

    async def replay() -> Message:
        if pending_body:
            return pending_body.pop()
        await disconnected.wait()
        return {"type": "http.disconnect"}

    async def watched_send(message: Message) -> None:
        nonlocal is_answered
        await send(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            is_answered = True

    async def wait_for_disconnect() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    work = asyncio.ensure_future(app(scope, replay, watched_send))
    watch = asyncio.ensure_future(wait_for_disconnect())
    try:
        await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
        disconnected.set()
        if is_answered:  # servers also report a disconnect after a complete answer
            await asyncio.wait((work,))
    finally:
        work.cancel()
        watch.cancel()
        await asyncio.gather(work, watch, return_exceptions=True)
    if not work.cancelled():
        work.result()
