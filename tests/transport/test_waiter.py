"""A loop that waits: it reads its channels itself, and wakes for all that concerns it."""

from __future__ import annotations

import gc
import os
import socket
import threading
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from dspine_cluster.errors import ChannelClosedError
from dspine_cluster.transport.channel import Channel, ChannelLimits
from dspine_cluster.transport.handshake import Peer
from dspine_cluster.transport.local import pair
from dspine_cluster.transport.messages import Close, Features, Hello, Message, Need, Open
from dspine_cluster.transport.socket_channel import SocketChannel
from dspine_cluster.transport.waiter import Waiter

SocketPair = Callable[..., tuple[SocketChannel, SocketChannel]]

LONG_S = 30.0


def watching(*channels: Channel) -> Waiter:
    waiter = Waiter()
    for channel in channels:
        waiter.watch(channel)
    waiter.clear()
    return waiter


def later(action: Callable[[], object]) -> None:
    threading.Timer(0.1, action).start()


def receive(waiter: Waiter, *channels: Channel) -> list[list[Message]]:
    """What a loop receives that waits once."""
    assert waiter.wait(LONG_S)
    waiter.clear()
    return [channel.receive() for channel in channels]


def test_whoever_waits_reads_what_comes_itself(socket_pair: SocketPair) -> None:
    verifier, drafter = socket_pair()
    readers: list[str] = []
    waiter = watching(drafter)

    def note_and_set() -> None:
        readers.append(threading.current_thread().name)
        waiter.set()

    drafter.set_ready_callback(note_and_set)
    later(lambda: verifier.send(Open(1)))
    assert receive(waiter, drafter) == [[Open(1)]]
    assert readers == [threading.current_thread().name]


def test_what_comes_while_nobody_waits_is_read_by_the_channel(socket_pair: SocketPair) -> None:
    verifier, drafter = socket_pair()
    watching(drafter)
    verifier.send(Open(1))
    deadline_s = time.monotonic() + LONG_S
    while not (received := drafter.receive()):
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
    assert received == [Open(1)]


def test_several_channels_wake_one_waiter_each_with_its_own_messages(
    socket_pair: SocketPair, verifier_hello: Hello, drafter_hello: Hello
) -> None:
    pairs = [socket_pair() for _ in range(3)] + [pair(verifier_hello, drafter_hello)]
    drafters = [drafter for _, drafter in pairs]
    waiter = watching(*drafters)
    for number, (verifier, _) in enumerate(pairs):
        later(partial(verifier.send, Open(number)))
        assert receive(waiter, *drafters) == [[Open(number)] if i == number else [] for i in range(4)]


def test_set_wakes_a_waiter_that_polls(socket_pair: SocketPair) -> None:
    _, drafter = socket_pair()
    waiter = watching(drafter)
    later(waiter.set)
    assert waiter.wait(LONG_S)
    assert waiter.wait(0.0), "it stays set until it is cleared"
    waiter.clear()
    assert not waiter.wait(0.01)


def test_sets_of_many_threads_are_never_lost() -> None:
    waiter = Waiter()
    counts = [0, 0, 0]
    taken = 0

    def add(index: int) -> None:
        for _ in range(500):
            counts[index] += 1
            waiter.set()

    threads = [threading.Thread(target=add, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    while taken < 1500:
        assert waiter.wait(LONG_S), f"nothing woke it after {taken}"
        waiter.clear()
        taken = sum(counts)
    for thread in threads:
        thread.join()


def test_a_channel_that_is_added_to_a_waiting_loop_is_read(socket_pair: SocketPair) -> None:
    verifier, drafter = socket_pair()
    waiter = Waiter()
    later(lambda: waiter.watch(drafter))
    later(lambda: verifier.send(Open(1)))
    received: list[Message] = []
    while not received:
        (received,) = receive(waiter, drafter)
    assert received == [Open(1)]


def take_features(verifier: SocketChannel, drafter: SocketChannel, waiter: Waiter) -> int:
    """Have the drafter receive features; the credits that the verifier had before."""
    num_bytes = verifier.free_credit_bytes
    assert verifier.send(Features(1, 0, np.zeros((10, 100), np.uint8)))
    assert len(receive(waiter, drafter)[0]) == 1
    assert verifier.free_credit_bytes == num_bytes - 1000
    return num_bytes


def test_credits_come_back_with_the_next_message(socket_pair: SocketPair) -> None:
    verifier, drafter = socket_pair()
    num_bytes = take_features(verifier, drafter, watching(drafter))
    waiter = watching(verifier)
    drafter.send(Need(1, 0, 1))
    assert receive(waiter, verifier) == [[Need(1, 0, 1)]]
    assert verifier.free_credit_bytes == num_bytes


def test_credits_come_back_before_a_loop_waits(socket_pair: SocketPair) -> None:
    verifier, drafter = socket_pair()
    waiter = watching(drafter)
    num_bytes = take_features(verifier, drafter, waiter)
    waiter.wait(0.0)
    deadline_s = time.monotonic() + LONG_S
    while verifier.free_credit_bytes < num_bytes:
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def test_a_peer_that_sends_half_a_message_wakes_nobody(verifier_hello: Hello) -> None:
    left, right = socket.socketpair()
    channel = SocketChannel(left, Peer(verifier_hello, 0), ChannelLimits())
    channel.start()
    waiter = watching(channel)
    with right:
        right.sendall(b"\x20\0\0\0\0\0\0\0half")
        assert not waiter.wait(0.1)
    with pytest.raises(ChannelClosedError, match="in the middle"):
        receive(waiter, channel)


def test_a_peer_that_sends_slowly_delays_no_other(socket_pair: SocketPair, verifier_hello: Hello) -> None:
    left, right = socket.socketpair()
    slow = SocketChannel(left, Peer(verifier_hello, 0), ChannelLimits())
    slow.start()
    verifier, drafter = socket_pair()
    waiter = watching(slow, drafter)
    with right:
        right.sendall(b"\x20\0\0\0")
        verifier.send(Need(1, 0, 1))
        assert receive(waiter, slow, drafter) == [[], [Need(1, 0, 1)]]
    slow.close()


def test_a_peer_that_does_not_read_holds_up_neither_the_wait_nor_other_channels(
    socket_pair: SocketPair, verifier_hello: Hello
) -> None:
    left, right = socket.socketpair()
    stuck = SocketChannel(left, Peer(verifier_hello, 32 << 20), ChannelLimits())
    stuck.start()
    verifier, drafter = socket_pair()
    waiter = watching(stuck, drafter)
    with right:
        assert stuck.send(
            Features(1, 0, np.zeros((16 << 10, 1 << 10), np.uint8))
        )  # more than the kernel takes
        stuck.send(Close(1))
        later(lambda: verifier.send(Open(1)))
        start_s = time.thread_time()
        assert receive(waiter, stuck, drafter) == [[], [Open(1)]]
        assert time.thread_time() - start_s < 0.05, "it spun instead of waiting"
    stuck.close()


def test_large_messages_come_whole(socket_pair: SocketPair) -> None:
    verifier, drafter = socket_pair()
    waiter = watching(drafter)
    rows = np.resize(np.arange(251, dtype=np.uint8), (4 << 10, 1 << 10))
    later(lambda: verifier.send(Features(1, 0, rows)))
    parts: list[Features] = []
    while not parts or parts[-1].end < len(rows):
        for message in receive(waiter, drafter)[0]:
            assert isinstance(message, Features)
            parts.append(message)
    assert np.array_equal(np.concatenate([part.rows for part in parts]), rows)


@pytest.mark.parametrize("closer", [0, 1])
def test_the_end_of_a_channel_wakes_its_waiter_once(socket_pair: SocketPair, closer: int) -> None:
    channels = socket_pair()
    waiter = watching(channels[1])
    later(channels[closer].close)
    assert waiter.wait(LONG_S)
    with pytest.raises(ChannelClosedError):
        channels[1].receive()
    deadline_s = time.monotonic() + LONG_S
    while channels[1].fileno() >= 0:
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
    waiter.clear()
    waiter.wait(0.05)
    waiter.clear()
    start_s = time.thread_time()
    assert not waiter.wait(0.2)
    assert time.thread_time() - start_s < 0.1, "it spun on a socket that is gone"


def test_a_waiter_leaves_no_files_open() -> None:
    gc.collect()
    num_files = len(os.listdir("/proc/self/fd"))
    waiters = [Waiter() for _ in range(5)]
    assert len(os.listdir("/proc/self/fd")) == num_files + 10
    del waiters
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == num_files
