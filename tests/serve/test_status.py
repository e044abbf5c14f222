from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO

import pytest
from rich.console import Console

from dspine_cluster.api.status_routes import DrafterBody, FiguresBody, PairBody, StatusBody, VerifierBody
from dspine_cluster.errors import ConfigError
from dspine_serve.status import read_status, render, show_status, watch_status

NOTHING = FiguresBody(
    committed_tokens=0,
    rounds=0,
    acceptance_length=None,
    verify_length=None,
    cached_ratio=None,
    acceptance_by_position=[],
    verify_length_shares=[],
)
FIGURES = FiguresBody(
    committed_tokens=412,
    rounds=100,
    acceptance_length=4.12,
    verify_length=7.3,
    cached_ratio=0.625,
    acceptance_by_position=[1.0, 0.5, None],
    verify_length_shares=[0.0, 1.0],
)
VERIFIER = VerifierBody(
    id="verifier-1",
    node="node",
    running_requests=3,
    waiting_requests=2,
    tokens_per_s=41.2,
    page_usage_ratio=0.31,
    drafters=[PairBody(drafter="drafter-1", attached_requests=3)],
    recent=FIGURES,
)
STATUS = StatusBody(
    model="small",
    window_s=10,
    running_requests=3,
    waiting_requests=2,
    tokens_per_s=41.2,
    recent=FIGURES,
    total=NOTHING,
    verifiers=[VERIFIER, VERIFIER.model_copy(update={"id": "verifier-2", "drafters": []})],
    drafters=[DrafterBody(id="drafter-1", node="node", requests=3)],
)


@contextmanager
def server(code: int, *bodies: str) -> Iterator[str]:
    """Answers with each body in turn, and then with none."""
    left = list(bodies)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code if left and self.path == "/dspine/status" else 404)
            self.end_headers()
            if left:
                self.wfile.write(left.pop(0).encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{running.server_port}"
    finally:
        running.shutdown()
        thread.join()
        running.server_close()


def printed(status: StatusBody) -> str:
    text = StringIO()
    Console(width=120, file=text).print(render(status))
    return text.getvalue()


def test_everything_is_told() -> None:
    text = printed(STATUS)
    for part in ("small", "41", "4.12", "7.30", "62%", "3 running", "2 waiting", "drafter-1 (3)", "31%"):
        assert part in text, part
    assert "verifier-2" in text
    assert "decodes plainly" in text


def test_a_cluster_without_replicas_is_told() -> None:
    text = printed(STATUS.model_copy(update={"verifiers": [], "drafters": []}))
    assert "no verifier is there" in text
    assert "no drafters" in text


def test_heights_show_how_much_was_accepted_at_each_position() -> None:
    assert "█▄ " in printed(STATUS)


def test_what_nothing_is_known_of_is_a_dash() -> None:
    line = next(line for line in printed(STATUS).splitlines() if line.startswith("acceptance length"))
    assert line.split() == ["acceptance", "length", "4.12", "-"]


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/"])
def test_the_url_of_the_server_or_of_its_interface_will_do(path: str) -> None:
    with server(200, STATUS.model_dump_json()) as url:
        assert read_status(url + path) == STATUS


@pytest.mark.parametrize(
    ("code", "body", "reason"),
    [
        (404, "{}", "404"),
        (401, "{}", "--api-key"),
        (200, "no JSON", "no status"),
        (200, json.dumps({"model": "x"}), "no status"),
    ],
)
def test_another_server_is_told_apart(code: int, body: str, reason: str) -> None:
    with server(code, body) as url, pytest.raises(ConfigError, match=reason):
        read_status(url)


def test_where_nobody_answers_the_remedy_is_named() -> None:
    with server(200) as url:
        pass
    with pytest.raises(ConfigError, match="--url"):
        show_status(Console(quiet=True), url)


def test_watching_goes_on_while_the_server_is_away() -> None:
    console = Console(width=120, record=True, force_terminal=True)
    seconds = iter(range(3))

    def sleep(_: float) -> None:
        if next(seconds) == 2:
            raise KeyboardInterrupt

    with server(200, *[STATUS.model_dump_json()] * 2) as url:
        watch_status(console, url, sleep=sleep)
    text = console.export_text()
    assert "4.12" in text
    assert "404" in text
