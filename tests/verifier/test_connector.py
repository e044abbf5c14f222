from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from dspine_cluster.transport.channel import Channel
from dspine_cluster.transport.messages import PROTOCOL_VERSION, Hello
from dspine_cluster.transport.socket import Listener, parse_endpoint
from dspine_cluster.verifier.connector import DrafterConnector

SECRET = b"0123456789abcdef"
VERIFIER = Hello(PROTOCOL_VERSION, "verifier", "target", "drafter", "tokenizer", "1")
DRAFTER = msgspec.structs.replace(VERIFIER, role="drafter", epoch="2")


class Calls:
    """What the connector reported."""

    def __init__(self) -> None:
        self.channels: list[tuple[str, Channel]] = []
        self.misfits: list[str] = []


@pytest.fixture
def endpoint() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="dspine") as folder:
        yield f"unix:{Path(folder)}/d.sock"


@contextmanager
def connector() -> Iterator[tuple[DrafterConnector, Calls]]:
    calls = Calls()
    running = DrafterConnector(
        VERIFIER,
        SECRET,
        on_channel=lambda endpoint, channel: calls.channels.append((endpoint, channel)),
        on_misfit=calls.misfits.append,
    )
    running.start()
    try:
        yield running, calls
    finally:
        running.stop()
        for _, channel in calls.channels:
            channel.close()


@contextmanager
def listening(endpoint: str, hello: Hello = DRAFTER) -> Iterator[list[Channel]]:
    accepted: list[Channel] = []
    listener = Listener(parse_endpoint(endpoint), hello, SECRET, accepted.append)
    try:
        yield accepted
    finally:
        listener.close()
        for channel in accepted:
            channel.close()


def wait_for(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_a_drafter_that_appears_later_is_connected_then(endpoint: str) -> None:
    with connector() as (running, calls):
        running.want([endpoint])
        time.sleep(0.1)
        assert not calls.channels
        with listening(endpoint):
            wait_for(lambda: calls.channels)
            assert calls.channels[0][0] == endpoint


def test_a_lost_drafter_is_connected_again(endpoint: str) -> None:
    with connector() as (running, calls), listening(endpoint):
        running.want([endpoint])
        wait_for(lambda: calls.channels)
        calls.channels[0][1].close()
        running.lost(endpoint, is_faulty=False)
        wait_for(lambda: len(calls.channels) == 2)


def test_a_drafter_that_broke_the_protocol_is_left_alone_for_a_while(endpoint: str) -> None:
    with connector() as (running, calls), listening(endpoint):
        running.want([endpoint])
        wait_for(lambda: calls.channels)
        calls.channels[0][1].close()
        running.lost(endpoint, is_faulty=True)
        time.sleep(1.0)
        assert len(calls.channels) == 1


def test_a_connected_drafter_is_left_alone(endpoint: str) -> None:
    with connector() as (running, calls), listening(endpoint):
        running.want([endpoint])
        wait_for(lambda: calls.channels)
        running.want([endpoint])
        time.sleep(0.5)
        assert len(calls.channels) == 1


@pytest.mark.parametrize("field", ["target", "drafter", "tokenizer"])
def test_a_drafter_whose_fingerprint_differs_is_a_misfit(endpoint: str, field: str) -> None:
    hello = msgspec.structs.replace(DRAFTER, **{field: "other"})
    with connector() as (running, calls), listening(endpoint, hello):
        running.want([endpoint])
        wait_for(lambda: calls.misfits)
        assert calls.misfits[0] == endpoint
        assert not calls.channels


def test_a_misfit_is_left_alone_while_others_are_tried_again(endpoint: str) -> None:
    hello = msgspec.structs.replace(DRAFTER, target="other")
    with connector() as (running, calls), listening(endpoint, hello):
        running.want([endpoint, endpoint + ".missing"])
        wait_for(lambda: calls.misfits)
        time.sleep(0.6)
        assert calls.misfits == [endpoint]


def test_a_drafter_of_another_protocol_version_is_never_connected_and_one_that_replaces_it_is(
    endpoint: str,
) -> None:
    newer = msgspec.structs.replace(DRAFTER, protocol=PROTOCOL_VERSION + 1)
    with connector() as (running, calls):
        with listening(endpoint, newer) as accepted:
            running.want([endpoint])
            time.sleep(0.6)
            assert (calls.channels, calls.misfits, accepted) == ([], [], [])
        with listening(endpoint):
            wait_for(lambda: calls.channels)


def test_a_drafter_that_always_goes_at_once_is_tried_at_a_pace(endpoint: str) -> None:
    with connector() as (running, calls), listening(endpoint):
        started_s = time.monotonic()
        running.want([endpoint])
        wait_for(lambda: calls.channels)
        running.lost(endpoint, is_faulty=False)
        wait_for(lambda: len(calls.channels) == 2)
        running.lost(endpoint, is_faulty=False)
        wait_for(lambda: len(calls.channels) == 3)
        assert time.monotonic() - started_s >= 0.5


def test_a_malformed_endpoint_does_not_keep_others_from_being_connected(endpoint: str) -> None:
    with connector() as (running, calls), listening(endpoint):
        running.want(["nonsense", endpoint])
        wait_for(lambda: calls.channels)
        assert calls.channels[0][0] == endpoint


def test_stopping_does_not_wait_for_drafters_that_never_come(endpoint: str) -> None:
    with connector() as (running, _):
        running.want([endpoint])
        started = threading.active_count()
    assert threading.active_count() < started
