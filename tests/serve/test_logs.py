from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from dspine_serve.logs import Outage, log_like_serve

OURS = ("dspine_cluster", "dspine_serve")


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture
def serve_log() -> Iterator[Kept]:
    """What Serve's logger writes, as a replica sets it up."""
    parents = {name: logging.getLogger(name).parent for name in OURS}
    serve, kept = logging.getLogger("ray.serve"), Kept()
    level, propagate = serve.level, serve.propagate
    serve.addHandler(kept)
    serve.setLevel(logging.INFO)
    serve.propagate = False
    yield kept
    serve.removeHandler(kept)
    serve.setLevel(level)
    serve.propagate = propagate
    for name, parent in parents.items():
        logging.getLogger(name).parent = parent


@pytest.mark.parametrize("name", ["dspine_serve.generator", "dspine_cluster.verifier.service"])
def test_a_replica_s_messages_are_in_serve_s_log_from_its_level_on(serve_log: Kept, name: str) -> None:
    log_like_serve()
    logging.getLogger(name).debug("one")
    logging.getLogger(name).info("two")
    logging.getLogger("ray.serve").setLevel(logging.DEBUG)
    logging.getLogger(name).debug("three")
    assert serve_log.messages == ["two", "three"]


def test_an_outage_is_told_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage(logging.getLogger("outage"), "nobody answers")
    outage.is_over()
    for _ in range(3):
        outage.lasts(TimeoutError())
    outage.is_over()
    outage.is_over()
    outage.lasts(TimeoutError())
    told = ["nobody answers: TimeoutError()", "It is over: nobody answers"]
    assert [record.getMessage() for record in caplog.records] == [*told, told[0]]
