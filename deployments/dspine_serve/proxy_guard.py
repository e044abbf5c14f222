"""In front of Serve's proxies: what these answer themselves gets OpenAI's shape, and clients that take nothing go.

Serve gives its proxies no other place for this than a function that an environment variable names.
"""

from __future__ import annotations

import asyncio
import logging
import os
from http import HTTPStatus

from ray.serve._private.constants import (
    SERVE_HTTP_REQUEST_DISCONNECT_DISABLED_HEADER,
    SERVE_HTTP_REQUEST_ID_HEADER,
    SERVE_HTTP_REQUEST_TIMEOUT_S_HEADER,
    SERVE_MULTIPLEXED_MODEL_ID,
    SERVE_SESSION_ID,
)
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dspine_cluster.api.errors import ApiError, describe
from dspine_serve.patient_send import PatientSend
from dspine_serve.proxy_answers import SERVE_STATUSES, error_of, event_of, has_applications

_logger = logging.getLogger(__name__)

PROXY_SETTINGS = {
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": f"{__name__}:middlewares",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "30",
}
"""Of Ray's environment. On a busy machine a proxy needs longer to start than the 5 s that Serve gives it."""
_WRITE_TIMEOUT_S = 120.0
_MAX_ID_BYTES = 256
_DISCONNECT: Message = {"type": "http.disconnect"}
_CONTROLS = frozenset(
    name.lower().replace("-", "_").encode()
    for name in (
        SERVE_HTTP_REQUEST_DISCONNECT_DISABLED_HEADER,
        SERVE_HTTP_REQUEST_TIMEOUT_S_HEADER,
        SERVE_MULTIPLEXED_MODEL_ID,
        SERVE_SESSION_ID,
    )
)
"""Headers by which a client could tell Serve how to treat its request, such as to go on when it has left."""


def guard_proxies() -> None:
    """Have the proxies of the Ray that this process starts next guarded, unless its user has set something else."""
    for name, value in PROXY_SETTINGS.items():
        os.environ.setdefault(name, value)


def middlewares() -> list[Middleware]:
    """What Serve's proxies call when they start."""
    return [Middleware(ProxyGuard)]


class ProxyGuard:
    """Around Serve's proxy.

    Serve takes what an ingress sends as fast as it comes, and keeps it until the client has read it. A client that
    takes nothing for `write_timeout_s` is taken for gone.
    """

    def __init__(self, app: ASGIApp, write_timeout_s: float = _WRITE_TIMEOUT_S) -> None:
        self._app = app
        self._write_timeout_s = write_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith("/-/"):
            await self._app(scope, receive, send)
            return
        with PatientSend(send, self._write_timeout_s) as patient_send:
            exchange = _Exchange(receive, patient_send)
            failure = None
            try:
                await self._app(_without_controls(scope), exchange.receive, exchange.send)
            except Exception as error:
                failure = error
            if not exchange.is_over:
                await exchange.finish(await self._explain(failure, exchange, scope))

    async def _explain(self, failure: Exception | None, exchange: _Exchange, scope: Scope) -> ApiError:
        """Why the application has not answered to the end."""
        if failure is not None:
            return describe(failure)
        status = exchange.refusal
        if status == HTTPStatus.NOT_FOUND and not await has_applications(self._app, scope):
            status = HTTPStatus.SERVICE_UNAVAILABLE
        return error_of(status, exchange.retry_after)


class _Exchange:
    """One request, and how far its answer is."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self.refusal: int | None = None
        """Status of an answer that is Serve's own; it is not passed on."""
        self.retry_after: str | None = None
        self._receive = receive
        self._send = send
        self._gone = asyncio.Event()
        self._has_begun = False
        self._is_complete = False
        self._is_event_stream = False

    async def receive(self) -> Message:
        incoming = asyncio.ensure_future(self._receive())
        leaving = asyncio.ensure_future(self._gone.wait())
        try:
            await asyncio.wait((incoming, leaving), return_when=asyncio.FIRST_COMPLETED)
            message = incoming.result() if incoming.done() else _DISCONNECT
        finally:
            incoming.cancel()
            leaving.cancel()
        if message["type"] == _DISCONNECT["type"]:
            self._gone.set()
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = {name.lower(): value for name, value in message["headers"]}
            content_type = headers.get(b"content-type", b"")
            # The application has JSON for these.
            if message["status"] in SERVE_STATUSES and content_type.startswith(b"text/plain"):
                self.refusal = message["status"]
                self.retry_after = headers.get(b"retry-after", b"").decode("latin-1") or None
            self._is_event_stream = content_type.startswith(b"text/event-stream")
        if self.refusal is None:
            await self._pass_on(message)

    @property
    def is_over(self) -> bool:
        """Whether the client has its answer, or has left."""
        return self._is_complete or self._gone.is_set()

    async def finish(self, error: ApiError) -> None:
        """Tell of `error` instead of what is missing of the answer."""
        if not self._has_begun:
            await self._answer(error)
        elif self._is_event_stream:
            await self._pass_on({"type": "http.response.body", "body": event_of(error)})

    async def _answer(self, error: ApiError) -> None:
        response = error.response()
        await self._pass_on(
            {"type": "http.response.start", "status": error.status, "headers": response.raw_headers}
        )
        await self._pass_on({"type": "http.response.body", "body": response.body})

    async def _pass_on(self, message: Message) -> None:
        if self._gone.is_set():
            return
        self._has_begun = True
        try:
            await self._send(message)
        except TimeoutError:
            _logger.warning("A client that takes nothing of its answer is taken for gone")
            self._gone.set()
        self._is_complete = message["type"] == "http.response.body" and not message.get("more_body", False)


def _without_controls(scope: Scope) -> Scope:
    headers = [(name, value) for name, value in scope["headers"] if _is_harmless(name.lower(), value)]
    return {**scope, "headers": headers}


def _is_harmless(name: bytes, value: bytes) -> bool:
    if name == SERVE_HTTP_REQUEST_ID_HEADER.encode():  # goes into every line of the log
        return value.isascii() and len(value) <= _MAX_ID_BYTES
    return name.replace(b"-", b"_") not in _CONTROLS
