"""ASGI middleware: bounds the body, and stops the work of a request whose client has gone."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dspine_cluster.api.errors import body_too_large


class RequestGuard:
    """Reads the whole body, refuses it with status 413 beyond `max_body_bytes`, then runs `app` and cancels it as
    soon as the client disconnects, whether it streams or is still waiting for its first token."""

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            if len(body) > self._max_body_bytes:
                await body_too_large(self._max_body_bytes).response()(scope, receive, send)
                return
            if not message.get("more_body", False):
                break
        await _run_while_connected(self._app, bytes(body), scope, receive, send)


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
