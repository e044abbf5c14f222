"""The handshake lets in who knows the secret and speaks the protocol, and nobody else, in bounded time."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dspine_cluster.errors import ChannelError, ConfigError
from dspine_cluster.transport.channel import ChannelLimits
from dspine_cluster.transport.handshake import Peer, check_secret, shake_hands
from dspine_cluster.transport.messages import PROTOCOL_VERSION, Hello

SECRET = b"a secret of an application"
LIMITS = ChannelLimits(credit_bytes=12345)


@pytest.fixture(scope="module")
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as executor:
        yield executor


def shake(
    threads: ThreadPoolExecutor, verifier: Hello, drafter: Hello, *, verifier_secret: bytes = SECRET
) -> tuple[Future[Peer], Future[Peer]]:
    """Both sides' outcomes; a side that fails hangs up."""

    def run(sock: socket.socket, hello: Hello, secret: bytes, is_listener: bool) -> Peer:
        with sock:
            return shake_hands(sock, hello, secret, LIMITS, is_listener=is_listener, timeout_s=60.0)

    left, right = socket.socketpair()
    connecting = threads.submit(run, left, verifier, verifier_secret, False)
    listening = threads.submit(run, right, drafter, SECRET, True)
    return connecting, listening


def test_both_sides_learn_who_the_other_is(
    threads: ThreadPoolExecutor, verifier_hello: Hello, drafter_hello: Hello
) -> None:
    connecting, listening = shake(threads, verifier_hello, drafter_hello)
    assert connecting.result() == Peer(drafter_hello, 12345)
    assert listening.result() == Peer(verifier_hello, 12345)


def test_another_secret_is_refused_by_the_listener_and_reported_to_the_connector(
    threads: ThreadPoolExecutor, verifier_hello: Hello, drafter_hello: Hello
) -> None:
    connecting, listening = shake(
        threads, verifier_hello, drafter_hello, verifier_secret=b"another secret here"
    )
    with pytest.raises(ChannelError, match="does not know"):
        listening.result()
    with pytest.raises(ChannelError, match="may have another secret"):
        connecting.result()


def test_another_protocol_version_is_refused_on_both_sides(
    threads: ThreadPoolExecutor, verifier_hello: Hello, drafter_hello: Hello
) -> None:
    newer = msgspec.structs.replace(verifier_hello, protocol=PROTOCOL_VERSION + 1)
    connecting, listening = shake(threads, newer, drafter_hello)
    with pytest.raises(ChannelError, match=f"speaks protocol {PROTOCOL_VERSION}, this side {newer.protocol}"):
        connecting.result()
    with pytest.raises(ChannelError, match=f"speaks protocol {newer.protocol}, this side {PROTOCOL_VERSION}"):
        listening.result()


def test_a_listener_that_echoes_is_not_believed(verifier_hello: Hello, threads: ThreadPoolExecutor) -> None:
    left, right = socket.socketpair()

    def echo() -> None:
        with right, contextlib.suppress(OSError):
            while data := right.recv(4096):
                right.sendall(data)

    echoing = threads.submit(echo)
    with left, pytest.raises(ChannelError, match="does not know"):
        shake_hands(left, verifier_hello, SECRET, LIMITS, is_listener=False, timeout_s=60.0)
    echoing.result()


@given(data=st.binary(max_size=200), is_magic=st.booleans())
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_garbage_at_any_stage_is_a_channel_error(drafter_hello: Hello, data: bytes, is_magic: bool) -> None:
    opening = b"dspine\x01\x00" + bytes(32) if is_magic else b""
    left, right = socket.socketpair()
    with left, right:
        left.sendall(opening + data)
        left.shutdown(socket.SHUT_WR)
        with pytest.raises(ChannelError):
            shake_hands(right, drafter_hello, SECRET, LIMITS, is_listener=True, timeout_s=60.0)


def test_a_peer_that_dribbles_is_cut_off_at_the_deadline(
    threads: ThreadPoolExecutor, drafter_hello: Hello
) -> None:
    left, right = socket.socketpair()

    def dribble() -> None:
        with contextlib.suppress(OSError):
            while True:  # until it is cut off
                left.sendall(b"d")
                time.sleep(0.02)

    with left:
        dribbling = threads.submit(dribble)
        with right, pytest.raises(ChannelError, match="did not finish"):
            shake_hands(right, drafter_hello, SECRET, LIMITS, is_listener=True, timeout_s=0.2)
        dribbling.result()


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 16"):
        check_secret(b"short")
