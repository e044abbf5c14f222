"""ASGI middleware: lets in who has a key, and notes whose request it is, before any of the body is read."""

from __future__ import annotations

import time
from collections.abc import Callable
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from dspine_cluster.api.errors import ApiError, describe
from dspine_cluster.api.guarding.keys import ApiKeys, current_caller
from dspine_cluster.core.rate_limit import Excess
from dspine_cluster.errors import OverloadedError

_OPEN_PATHS = frozenset({"/", "/health", "/ready", "/metrics"})
"""What orchestrators ask, and the page, in which a key can be entered."""


class KeyGuard:
    """Answers 401 without a key that is known, and 429 beyond its requests a minute. Without keys it lets all in."""

    def __init__(self, app: ASGIApp, keys: ApiKeys, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._keys = keys
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._keys or scope["path"] in _OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        key = key.strip()
        # Headers are read as Latin-1, and most clients write UTF-8.
        readings = (key, key.encode("latin-1").decode(errors="replace"))
        known = [caller for reading in readings if (caller := self._keys.find(reading))]
        caller = known[0] if known and scheme.lower() == "bearer" else None
        if caller is None or caller.limiter is None:
            await _unauthorized(given=bool(key)).response()(scope, receive, send)
            return
        excess = caller.limiter.arrive(self._clock()) if scope["method"] == "POST" else None
        if excess is not None:
            await describe(over_limit(excess)).response()(scope, receive, send)
            return
        token = current_caller.set(caller)
        try:
            await self._app(scope, receive, send)
        finally:
            current_caller.reset(token)


def over_limit(excess: Excess) -> OverloadedError:
    """What the client of a key is told that has asked for too much."""
    return OverloadedError(
        f"Rate limit reached for this API key: {excess.limit}.",
        retry_after_s=excess.retry_after_s,
        code="rate_limit_exceeded",
    )


def _unauthorized(*, given: bool) -> ApiError:
    message = (
        "Incorrect API key provided." if given else "No API key provided: send `Authorization: Bearer KEY`."
    )
    return ApiError(
        HTTPStatus.UNAUTHORIZED,
        message,
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer", "Connection": "close"},
    )
