from __future__ import annotations

import asyncio

import pytest
from fastapi import FastAPI
from fastapi.responses import Response
from starlette.testclient import TestClient
from starlette.types import Message

from dspine_cluster.api.guarding.answer_counter import AnswerCounter
from dspine_cluster.observability.ingress_metrics import IngressMetrics


@pytest.fixture
def metrics() -> IngressMetrics:
    return IngressMetrics()


@pytest.fixture
def app(metrics: IngressMetrics) -> FastAPI:
    app = FastAPI()
    app.add_middleware(AnswerCounter, metrics=metrics, routes=app.routes)

    @app.get("/busy")
    async def busy() -> Response:
        return Response(status_code=429)

    @app.get("/slow")
    async def slow() -> Response:
        await asyncio.Event().wait()
        raise AssertionError

    return app


def test_answers_are_counted_by_path_and_status(app: FastAPI, metrics: IngressMetrics) -> None:
    client = TestClient(app)
    for path in ("/busy", "/busy", "/made-up-1", "/made-up-2"):
        client.get(path)
    assert metrics.answers == {("/busy", 429): 2, ("other", 404): 2}
    assert metrics.figures()["http_requests_total{path=/busy,status=429}"] == 2


async def test_a_client_that_leaves_before_its_answer_is_counted(
    app: FastAPI, metrics: IngressMetrics
) -> None:
    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    async def send(message: Message) -> None:
        del message

    scope = {"type": "http", "method": "GET", "path": "/slow", "headers": [], "query_string": b""}
    call = asyncio.ensure_future(app(scope, receive, send))
    await asyncio.sleep(0.05)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert metrics.answers == {("/slow", 499): 1}
