"""ASGI middleware: counts HTTP requests by path and status."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dspine_cluster.observability.ingress_metrics import IngressMetrics

_OTHER_PATH = "other"
_LEFT = 499
"""The client went away before there was an answer."""


class AnswerCounter:
    """Paths that no route has are counted together, so that nobody can make up series."""

    def __init__(self, app: ASGIApp, metrics: IngressMetrics, routes: Sequence[BaseRoute]) -> None:
        self._app = app
        self._metrics = metrics
        self._paths = frozenset(route.path for route in routes if isinstance(route, Route))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = _LEFT

        async def watched_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        finally:
            path = scope["path"] if scope["path"] in self._paths else _OTHER_PATH
            self._metrics.answers[path, status] += 1
