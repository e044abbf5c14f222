"""A channel over a socket: order, lanes, credits, bounds and ends."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from dspine_cluster.errors import ChannelClosedError
from dspine_cluster.transport.channel import Channel, ChannelLimits
from dspine_cluster.transport.handshake import Peer
from dspine_cluster.transport.messages import (
    Close,
    FeatureBatch,
    Features,
    Hello,
    Message,
    Need,
    Open,
    Proposals,
)
from dspine_cluster.transport.shared_ring import RingWriter, receive_ring, send_ring
from dspine_cluster.transport.socket_channel import SocketChannel
from dspine_cluster.transport.wire import Credit, Encoder, Frame

SocketPair = Callable[..., tuple[SocketChannel, SocketChannel]]


def ends_at(end: int) -> Callable[[Message], bool]:
    return lambda message: isinstance(message, Features) and message.end == end


def closes(uid: int) -> Callable[[Message], bool]:
    return lambda message: message == Close(uid)


def features(num_rows: int, row_bytes: int = 1024, uid: int = 1, start: int = 0) -> Features:
    values = np.resize(np.arange(251, dtype=np.uint8), num_rows * row_bytes)
    return Features(uid, start, values.reshape(num_rows, row_bytes))


def receive_until(
    channel: Channel, is_last: Callable[[Message], bool], timeout_s: float = 10.0
) -> list[Message]:
    """All that arrives up to the message for which `is_last` holds, and what came with it."""
    ready = threading.Event()
    channel.set_ready_callback(ready.set)
    received: list[Message] = []
    deadline = time.monotonic() + timeout_s
    while not any(map(is_last, received)):
        assert ready.wait(deadline - time.monotonic()), f"only {len(received)} messages arrived"
        ready.clear()
        received += channel.receive()
    return received


def receive_end(channel: Channel) -> tuple[list[Message], str]:
    """All that arrives until the end, and the reason of the end."""
    ready = threading.Event()
    channel.set_ready_callback(ready.set)
    received: list[Message] = []
    while True:
        assert ready.wait(10.0), "the end did not come"
        ready.clear()
        try:
            received += channel.receive()
        except ChannelClosedError as error:
            return received, str(error)


def wait_for(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_messages_arrive_in_order_in_both_directions(socket_pair: SocketPair) -> None:
    verifier, drafter = socket_pair()
    sent: list[Message] = [Open(uid) for uid in range(100)]
    for channel in (verifier, drafter):
        for message in sent:
            assert channel.send(message)
    assert receive_until(drafter, lambda message: message == Open(99)) == sent
    assert receive_until(verifier, lambda message: message == Open(99)) == sent


def test_features_without_bulk_stay_before_the_draft_that_follows(socket_pair: SocketPair) -> None:
    verifier, drafter = socket_pair()
    for start in range(0, 3000, 1000):
        assert verifier.send(features(1000, start=start))
    verifier.send(Close(1))
    received = receive_until(drafter, lambda message: message == Close(1))
    assert received[-1] == Close(1)
    rows = [message for message in received if isinstance(message, Features)]
    assert [part.start for part in rows[1:]] == [part.end for part in rows[:-1]]
    assert rows[-1].end == 3000


def test_large_features_arrive_whole_in_fragments(socket_pair: SocketPair) -> None:
    verifier, drafter = socket_pair(ChannelLimits(fragment_bytes=10_000))
    sent = features(100, 999, start=48)
    verifier.send(sent, bulk=True)
    received: list[Any] = receive_until(drafter, ends_at(148))
    assert max(part.num_bytes for part in received) <= 10_000
    assert received[0].start == 48
    assert np.array_equal(np.concatenate([part.rows for part in received]), sent.rows)


def test_rounds_overtake_bulk(verifier_hello: Hello) -> None:
    left, right = socket.socketpair()
    limits = ChannelLimits()
    sender = SocketChannel(left, Peer(verifier_hello, limits.credit_bytes), limits)
    receiver = SocketChannel(right, Peer(verifier_hello, limits.credit_bytes), limits)
    assert sender.send(features(16 << 10), bulk=True)  # 16 MiB: far more than the kernel takes unread
    sender.send(Need(1, 0, 1))
    for channel in (sender, receiver):
        channel.start()
    received = receive_until(receiver, ends_at(16 << 10))
    kinds = [type(message) for message in received]
    assert kinds.count(Features) == 64
    assert kinds.index(Need) <= 5, "a round waited for more bulk than one fragment and the kernel's buffer"
    sender.close()
    receiver.close()


def test_credits_bound_what_a_sleeping_reader_holds(socket_pair: SocketPair) -> None:
    verifier, drafter = socket_pair(ChannelLimits(credit_bytes=1 << 20))
    num_sent = 0
    while verifier.send(features(100), bulk=True):
        num_sent += 1
    assert num_sent == 10
    time.sleep(0.1)
    assert not verifier.send(features(100), bulk=True)
    assert verifier.send(Open(2)), "credits concern Features only"
    receive_until(drafter, lambda message: isinstance(message, Features))
    wait_for(lambda: verifier.free_credit_bytes >= 100 << 10)
    assert verifier.send(features(100), bulk=True)


def test_all_credits_come_back(socket_pair: SocketPair) -> None:
    limits = ChannelLimits(credit_bytes=1 << 20)
    verifier, drafter = socket_pair(limits)
    for number in range(20):
        assert verifier.send(features(1024, start=1024 * number))
        receive_until(drafter, ends_at(1024 * (number + 1)))
        wait_for(lambda: verifier.free_credit_bytes == limits.credit_bytes)


def test_features_larger_than_all_credits_are_never_taken(socket_pair: SocketPair) -> None:
    verifier, _ = socket_pair(ChannelLimits(credit_bytes=1000))
    assert not verifier.send(features(1)), "how many there are is the peer's choice, no mistake of the sender"


def test_a_peer_that_never_reads_closes_the_channel_instead_of_filling_memory(verifier_hello: Hello) -> None:
    left, right = socket.socketpair()
    with right:
        channel = SocketChannel(left, Peer(verifier_hello, 0), ChannelLimits(max_queued_bytes=1 << 20))
        channel.start()
        with pytest.raises(ChannelClosedError, match="stopped reading"):
            send_many(channel, 1000)


def test_a_loop_that_sleeps_stops_the_reading_and_loses_nothing(socket_pair: SocketPair) -> None:
    verifier, drafter = socket_pair(drafter_limits=ChannelLimits(max_queued_bytes=1 << 20))
    send_many(verifier, 20)  # 8 MB
    time.sleep(0.2)
    assert drafter._inbox.num_bytes < 3 << 20
    assert verifier._writer.queued_bytes > 0
    received = receive_until(
        drafter, lambda message: isinstance(message, Proposals) and message.rounds[0] == 19
    )
    assert [message.rounds[0] for message in received if isinstance(message, Proposals)] == list(range(20))


def test_what_was_sent_before_the_close_arrives_before_it(socket_pair: SocketPair) -> None:
    verifier, drafter = socket_pair()
    for uid in range(10):
        drafter.send(Open(uid))
    drafter.close()
    received, reason = receive_end(verifier)
    assert received == [Open(uid) for uid in range(10)]
    assert "peer closed" in reason
    with pytest.raises(ChannelClosedError):
        verifier.send(Open(1))
    with pytest.raises(ChannelClosedError, match="this side"):
        drafter.receive()
    drafter.close()


def test_closing_while_the_other_side_sends_ends_both(socket_pair: SocketPair) -> None:
    verifier, drafter = socket_pair()
    failed = threading.Event()

    def send_for_ever() -> None:
        try:
            while True:
                verifier.send(proposals(20))
        except ChannelClosedError:
            failed.set()

    sender = threading.Thread(target=send_for_ever)
    sender.start()
    receive_until(drafter, lambda message: True)
    drafter.close()
    assert failed.wait(10.0)
    sender.join()
    receive_end(verifier)


def encoded(frame: Frame) -> bytes:
    return b"".join(Encoder().encode(frame, ChannelLimits()))


def in_ring(frame: Frame, start: int, num_bytes: int) -> bytes:
    """The frame, which claims that so many bytes of it lie in the ring."""
    header = encoded(frame)[16:]
    return struct.pack("<IIQ", len(header), num_bytes, start + 1) + header


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (struct.pack("<IIQ", 2**31, 0, 0), "beyond the limits"),
        (struct.pack("<IIQ", 4, 0, 0) + b"\xff\xff\xff\xff", "malformed"),
        (encoded(Credit(5)), "never took"),
        (encoded(Credit(0)), "never took"),
        (encoded(features(2, 600)), "beyond its credits"),
        (encoded(Open(8))[:-1], "in the middle"),
    ],
)
def test_a_broken_protocol_ends_the_channel_with_its_reason(
    verifier_hello: Hello, data: bytes, reason: str
) -> None:
    left, right = socket.socketpair()
    channel = SocketChannel(left, Peer(verifier_hello, 1000), ChannelLimits(credit_bytes=1000))
    channel.start()
    with right:
        right.sendall(encoded(Open(7)) + data)
        right.shutdown(socket.SHUT_WR)
        received, given = receive_end(channel)
    assert received == [Open(7)]
    assert reason in given


def send_many(channel: Channel, count: int) -> None:
    for number in range(count):
        message = proposals(200)
        message.rounds[0] = number
        channel.send(message)


def proposals(num_requests: int) -> Proposals:
    """Proposals of 15 tokens with 16 candidates each: about 2 KB a request."""
    shape = (num_requests, 15)
    return Proposals(
        np.array([[uid, 0, 1] for uid in range(num_requests)]).T,
        np.zeros(shape, np.int32),
        np.zeros((*shape, 16), np.int32),
        np.zeros((*shape, 16), np.float32),
        np.zeros(shape, np.int8),
        0.0,
    )


RING_BYTES = 10_000


@pytest.fixture
def near_channels(verifier_hello: Hello) -> Iterator[tuple[SocketChannel, SocketChannel, RingWriter]]:
    """Two started channels, the first with a small ring to the second."""
    left, right = socket.socketpair()
    limits = ChannelLimits(fragment_bytes=4000)
    writer, reader = send_ring(left, RING_BYTES), receive_ring(right, RING_BYTES)
    assert writer is not None
    peer = Peer(verifier_hello, limits.credit_bytes)
    first, second = SocketChannel(left, peer, limits, writer), SocketChannel(right, peer, limits, reader)
    for channel in (first, second):
        channel.start()
    yield first, second, writer
    first.close()
    second.close()


def feature_batch(number: int, num_rows: int) -> FeatureBatch:
    rows = np.resize(np.arange(number, number + 251, dtype=np.uint8), (num_rows, 100))
    return FeatureBatch.of(uids=[number, number + 1], starts=[0, 7], counts=[1, num_rows - 1], rows=rows)


def test_features_of_rounds_arrive_whole_through_the_ring_or_beside_it(
    near_channels: tuple[SocketChannel, SocketChannel, RingWriter],
) -> None:
    first, second, _ = near_channels
    sizes = [2, 60, 33, 90, 150, 3, 99, 2, 41]  # rows of 100 bytes: some do not fit into the ring
    for number, num_rows in enumerate(sizes):
        assert first.send(feature_batch(number, num_rows))
        assert first.send(features(30, 333, uid=number), bulk=number % 2 == 0)
        first.send(Close(number))
    received = receive_until(second, lambda message: message == Close(len(sizes) - 1))
    batches = [message for message in received if isinstance(message, FeatureBatch)]
    for number, (batch, num_rows) in enumerate(zip(batches, sizes, strict=True)):
        expected = feature_batch(number, num_rows)
        for name in ("uids", "starts", "counts", "rows"):
            assert np.array_equal(getattr(batch, name), getattr(expected, name))
    while len(parts := [m for m in received if isinstance(m, Features)]) < 3 * len(sizes):
        received += receive_until(second, lambda message: isinstance(message, Features))
    assert all((part.rows == features(30, 333).rows[part.start : part.end]).all() for part in parts)


def test_a_round_is_not_carried_through_the_socket_while_the_ring_has_room(
    near_channels: tuple[SocketChannel, SocketChannel, RingWriter],
) -> None:
    first, second, writer = near_channels
    for number in range(10):
        assert first.send(feature_batch(number, 50))
        assert writer._written == number * RING_BYTES + 5000 + 2 * 24
        first.send(Close(number))
        receive_until(second, closes(number))
        second.send(Need(1, 0, 1))


def test_memory_of_rows_is_not_written_anew_while_somebody_has_them(
    near_channels: tuple[SocketChannel, SocketChannel, RingWriter],
) -> None:
    first, second, _ = near_channels
    received: list[Message] = []
    for number in range(10):
        assert first.send(feature_batch(number, 30))
        first.send(Close(number))
        received += receive_until(second, closes(number))
    batches = [message for message in received if isinstance(message, FeatureBatch)]
    assert all(
        np.array_equal(batch.rows, feature_batch(number, 30).rows) for number, batch in enumerate(batches)
    )


def test_numbers_that_were_checked_lie_where_the_sender_cannot_change_them(
    near_channels: tuple[SocketChannel, SocketChannel, RingWriter],
) -> None:
    first, second, writer = near_channels
    first.send(feature_batch(0, 30))
    first.send(Close(0))
    batch = receive_until(second, closes(0))[0]
    assert isinstance(batch, FeatureBatch)
    writer._piece(0, RING_BYTES)[:] = 255
    assert (batch.rows == 255).all(), "rows are read in place"
    expected = feature_batch(0, 30)
    for name in ("uids", "starts", "counts"):
        assert np.array_equal(getattr(batch, name), getattr(expected, name))


def test_bulk_which_may_be_overtaken_stays_out_of_the_ring(
    near_channels: tuple[SocketChannel, SocketChannel, RingWriter],
) -> None:
    first, second, writer = near_channels
    assert first.send(features(10, 100), bulk=True)
    receive_until(second, ends_at(10))
    assert writer._written == 0


@pytest.mark.parametrize(
    ("start", "num_bytes", "reason"),
    [
        (1, 100, "not the next"),
        (0, RING_BYTES + 1, "not the next"),
        (0, 0, "not the next"),
        (0, 2**31, "beyond the limits"),
        (0, 10, "more bytes"),
    ],
)
def test_a_peer_that_lies_about_shared_memory_loses_its_channel(
    verifier_hello: Hello, start: int, num_bytes: int, reason: str
) -> None:
    left, right = socket.socketpair()
    send_ring(right, RING_BYTES)
    reader = receive_ring(left, RING_BYTES)
    channel = SocketChannel(left, Peer(verifier_hello, 1000), ChannelLimits(), reader)
    channel.start()
    with right:
        right.sendall(in_ring(Open(1), start, num_bytes))
        _, given = receive_end(channel)
    assert reason in given


def test_shared_memory_that_was_never_agreed_on_is_refused(verifier_hello: Hello) -> None:
    left, right = socket.socketpair()
    channel = SocketChannel(left, Peer(verifier_hello, 1000), ChannelLimits())
    channel.start()
    with right:
        right.sendall(in_ring(Open(1), 0, 10))
        assert "may not" in receive_end(channel)[1]


def test_a_reader_that_forges_what_it_has_taken_loses_its_channel(
    near_channels: tuple[SocketChannel, SocketChannel, RingWriter],
) -> None:
    first, _, writer = near_channels
    writer._taken[0] = 2**40
    with pytest.raises(ChannelClosedError, match="forged"):
        first.send(feature_batch(0, 5))
    with pytest.raises(ChannelClosedError):
        first.send(Close(1))
