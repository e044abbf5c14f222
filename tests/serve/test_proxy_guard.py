from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from ray.serve._private.utils import call_function_from_import_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dspine_serve.proxy_guard import PROXY_SETTINGS, ProxyGuard

JSON = [(b"content-type", b"application/json")]
TEXT = [(b"content-type", b"text/plain; charset=utf-8")]
EVENTS = [(b"content-type", b"text/event-stream")]
PATIENT_S = 60.0


def start(status: int, headers: list[tuple[bytes, bytes]]) -> Message:
    return {"type": "http.response.start", "status": status, "headers": headers}


def part(body: bytes, *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


class Proxy:
    """Serve's: sends what it is given, for whatever is asked, and knows some routes."""

    def __init__(self, *messages: Message, error: Exception | None = None, routes: object = None) -> None:
        self._messages = messages
        self._error = error
        self._routes = {"/": "dspine"} if routes is None else routes
        self.headers: list[tuple[bytes, bytes]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/-/routes":
            is_ready = isinstance(self._routes, dict)
            await send(start(200 if is_ready else 503, JSON if is_ready else TEXT))
            await send(part(json.dumps(self._routes).encode() if is_ready else b"not ready"))
            return
        self.headers = list(scope["headers"])
        for message in self._messages:
            await send(message)
        if self._error is not None:
            raise self._error


class Client:
    """Takes the first `takes` messages, and then nothing until it leaves, which it does when told to."""

    def __init__(self, takes: int | None = None) -> None:
        self._takes = takes
        self.gone = asyncio.Event()
        self.received: list[Message] = []

    async def receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if self._takes is not None and len(self.received) == self._takes:
            await self.gone.wait()
            return
        self.received.append(message)

    @property
    def status(self) -> int:
        status: int = self.received[0]["status"]
        return status

    @property
    def header(self) -> dict[bytes, bytes]:
        return dict(self.received[0]["headers"])

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.received[1:])

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = json.loads(self.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error


async def ask(
    proxy: ASGIApp,
    client: Client | None = None,
    write_timeout_s: float = PATIENT_S,
    headers: list[tuple[bytes, bytes]] | None = None,
) -> Client:
    client = client or Client()
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers or []}
    await ProxyGuard(proxy, write_timeout_s)(scope, client.receive, client.send)
    return client


def test_serve_finds_it_where_the_environment_says() -> None:
    path = PROXY_SETTINGS["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"]
    [middleware] = call_function_from_import_path(path)
    assert middleware.cls is ProxyGuard


@pytest.mark.parametrize(
    "messages",
    [
        [start(200, JSON), part(b"{}")],
        [start(400, JSON), part(b'{"error"', more=True), part(b": {}}")],
        [start(200, TEXT), part(b"dspine_rounds_total 1")],
        [start(400, TEXT), part(b"Disallowed CORS origin")],
        [start(200, EVENTS), part(b"data: {}\n\n", more=True), part(b"data: [DONE]\n\n")],
    ],
)
async def test_what_the_application_answers_is_passed_on(messages: list[Message]) -> None:
    assert (await ask(Proxy(*messages))).received == messages


async def test_a_full_queue_is_told_in_openai_shape_with_the_time_to_wait() -> None:
    client = await ask(Proxy(start(429, [*TEXT, (b"retry-after", b"7")]), part(b"Request dropped ...")))
    assert (client.status, client.header[b"retry-after"]) == (429, b"7")
    assert client.error["type"] == "rate_limit_error"


async def test_a_deployment_that_is_down_is_told_in_openai_shape() -> None:
    client = await ask(Proxy(start(503, TEXT), part(b"Deployment is unavailable ...")))
    assert (client.status, client.header[b"retry-after"]) == (503, b"2")
    assert client.error["code"] == "engine_stopped"


async def test_a_path_outside_the_application_is_not_found() -> None:
    client = await ask(Proxy(start(404, TEXT), part(b"Path not found"), routes={"/llm": "dspine"}))
    assert (client.status, client.error["code"]) == (404, "not_found")


@pytest.mark.parametrize("routes", [{}, "not ready"], ids=["none", "not ready"])
async def test_clients_come_back_where_nothing_is_served_yet_or_any_more(routes: object) -> None:
    client = await ask(Proxy(start(404, TEXT), part(b"Path not found"), routes=routes))
    assert (client.status, client.header[b"retry-after"]) == (503, b"2")


async def test_a_request_whose_ingress_died_before_it_answered_can_be_sent_again() -> None:
    client = await ask(Proxy())
    assert (client.status, client.header[b"retry-after"]) == (503, b"2")
    assert "send it again" in client.error["message"]


async def test_a_stream_whose_ingress_died_ends_with_an_error_event() -> None:
    client = await ask(Proxy(start(200, EVENTS), part(b"data: {}\n\n", more=True)))
    *_, error, done, end = client.body.split(b"\n\n")
    assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "engine_stopped"
    assert (done, end) == (b"data: [DONE]", b"")
    assert not client.received[-1].get("more_body")


async def test_a_whole_answer_that_was_cut_stays_cut() -> None:
    client = await ask(Proxy(start(200, JSON), part(b'{"id"', more=True)))
    assert client.body == b'{"id"'
    assert client.received[-1]["more_body"]


async def test_a_failure_of_the_proxy_is_logged_and_told_without_details(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR):
        client = await ask(Proxy(error=ValueError("secret")))
    assert (client.status, client.error["code"]) == (500, "internal_error")
    assert b"secret" not in client.body
    assert "secret" in caplog.text


@pytest.mark.parametrize(
    ("name", "value", "is_kept"),
    [
        (b"x-request-disconnect-disabled", b"?1", False),
        (b"X-Request-Timeout-Seconds", b"\xff", False),
        (b"serve-multiplexed-model-id", b"m", False),
        (b"x-session-id", b"\xff", False),
        (b"x-request-id", b"\xff", False),
        (b"x-request-id", b"a" * 300, False),
        (b"x-request-id", b"mine", True),
        (b"authorization", b"Bearer \xff", True),
    ],
)
async def test_a_client_does_not_tell_serve_what_to_do(name: bytes, value: bytes, is_kept: bool) -> None:
    proxy = Proxy(start(200, JSON), part(b"{}"))
    await ask(proxy, headers=[(name, value), (b"host", b"x")])
    assert proxy.headers == [(name, value)] * is_kept + [(b"host", b"x")]


async def test_a_client_that_takes_nothing_is_taken_for_gone() -> None:
    told: list[Message] = []

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        leaving = asyncio.ensure_future(receive())
        await send(start(200, EVENTS))
        while not leaving.done():
            await send(part(b"data: {}\n\n", more=True))
            await asyncio.sleep(0)
        told.append(leaving.result())

    client = await ask(endless, Client(takes=3), write_timeout_s=0.01)
    assert told == [{"type": "http.disconnect"}]
    assert len(client.received) == 3


async def test_a_client_that_leaves_gets_no_error() -> None:
    async def wait(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start(200, EVENTS))
        assert (await receive())["type"] == "http.disconnect"

    client = Client()
    client.gone.set()
    assert (await ask(wait, client)).received == [start(200, EVENTS)]


async def test_serve_s_own_routes_are_left_alone() -> None:
    client = Client()
    scope = {"type": "http", "method": "GET", "path": "/-/routes", "headers": []}
    await ProxyGuard(Proxy())(scope, client.receive, client.send)
    assert client.received == [start(200, JSON), part(b'{"/": "dspine"}')]
