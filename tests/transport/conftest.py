"""Connected socket channels, and a folder whose paths are short enough for sockets."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dspine_cluster.transport.channel import ChannelLimits
from dspine_cluster.transport.handshake import Peer
from dspine_cluster.transport.messages import PROTOCOL_VERSION, Hello
from dspine_cluster.transport.socket_channel import SocketChannel

SocketPair = Callable[..., tuple[SocketChannel, SocketChannel]]


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dspine") as path:
        yield Path(path)


@pytest.fixture
def verifier_hello() -> Hello:
    return Hello(PROTOCOL_VERSION, "verifier", "target", "drafter", "tokenizer", "1")


@pytest.fixture
def drafter_hello() -> Hello:
    return Hello(PROTOCOL_VERSION, "drafter", "target", "drafter", "tokenizer", "2")


@pytest.fixture
def socket_pair(verifier_hello: Hello, drafter_hello: Hello) -> Iterator[SocketPair]:
    """Makes two socket channels connected to each other, the verifier's and the drafter's."""
    channels: list[SocketChannel] = []
    with ThreadPoolExecutor(8) as threads:

        def make(
            limits: ChannelLimits | None = None, drafter_limits: ChannelLimits | None = None
        ) -> tuple[SocketChannel, SocketChannel]:
            limits = limits or ChannelLimits()
            drafter_limits = drafter_limits or limits
            left, right = socket.socketpair()
            made = (
                SocketChannel(left, Peer(drafter_hello, drafter_limits.credit_bytes), limits),
                SocketChannel(right, Peer(verifier_hello, limits.credit_bytes), drafter_limits),
            )
            channels.extend(made)
            for channel in made:
                threads.submit(channel.run)
            return made

        yield make
        for channel in channels:
            channel.close()
