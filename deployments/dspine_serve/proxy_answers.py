"""What clients are told where Serve's proxy has no answer of the application's."""

from __future__ import annotations

import json
from http import HTTPStatus

from starlette.types import ASGIApp, Message, Scope

from dspine_cluster.api.errors import ApiError, describe
from dspine_cluster.errors import EngineStoppedError, OverloadedError

SERVE_STATUSES = frozenset({404, 408, 429, 503})
"""Of answers that proxies give themselves, as plain text."""
_ROUTES_PATH = "/-/routes"


def error_of(status: int | None, retry_after: str | None) -> ApiError:
    """For an answer of Serve's own; None where it gave none, because the ingress that had the request is gone."""
    match status:
        case HTTPStatus.NOT_FOUND:
            return ApiError(HTTPStatus.NOT_FOUND, "Nothing is served at this path.", code="not_found")
        case HTTPStatus.REQUEST_TIMEOUT:
            return ApiError(HTTPStatus.REQUEST_TIMEOUT, "The answer took too long.", code="request_timeout")
        case HTTPStatus.TOO_MANY_REQUESTS:
            wait_s = float(retry_after) if retry_after and retry_after.isdecimal() else 2.0
            return describe(OverloadedError("too many requests are waiting", retry_after_s=wait_s))
        case HTTPStatus.SERVICE_UNAVAILABLE:
            return describe(EngineStoppedError("no replica takes requests"))
    return describe(EngineStoppedError("the replica that had this request is gone; send it again"))


def event_of(error: ApiError) -> bytes:
    """The end of a stream that cannot go on."""
    return b"data: " + error.body().model_dump_json().encode() + b"\n\ndata: [DONE]\n\n"


async def has_applications(proxy: ASGIApp, scope: Scope) -> bool:
    """Whether anything is deployed, so that a path may be wrong."""
    status, body = 0, b""

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status, body
        status = message.get("status", status)
        body += message.get("body", b"")

    await proxy({**scope, "method": "GET", "path": scope.get("root_path", "") + _ROUTES_PATH}, receive, send)
    return status == HTTPStatus.OK and bool(json.loads(body))
