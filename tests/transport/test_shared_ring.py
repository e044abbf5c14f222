"""The ring gives the reader what the writer wrote, and a peer that lies cannot make it touch anything else."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.errors import ChannelError
from dspine_cluster.transport.shared_ring import (
    _HEADER_BYTES,
    RingReader,
    RingWriter,
    receive_ring,
    send_ring,
)

RING_BYTES = 101


def ring_pair(ring_bytes: int = RING_BYTES) -> tuple[RingWriter, RingReader]:
    first, second = socket.socketpair()
    with first, second:
        writer = send_ring(first, ring_bytes)
        reader = receive_ring(second, ring_bytes)
    assert writer is not None
    assert reader is not None
    return writer, reader


def take_next(writer: RingWriter, reader: RingReader, num_bytes: int) -> npt.NDArray[np.uint8]:
    """What was written of this number, as many times."""
    start = writer.write([view(bytes([num_bytes]) * num_bytes)], num_bytes)
    assert start is not None
    return reader.take(start, num_bytes)


def view(data: bytes) -> memoryview:
    return memoryview(data)


@given(st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=3), max_size=30), st.data())
def test_what_somebody_refers_to_stays_as_it_was_written(
    messages: list[list[bytes]], data: st.DataObject
) -> None:
    writer, reader = ring_pair()
    taken: list[tuple[npt.NDArray[np.uint8], bytes]] = []
    for parts in messages:
        whole = b"".join(parts)
        if not whole:
            continue
        start = writer.write([view(part) for part in parts if part], len(whole))
        if not taken:
            assert (start is None) == (len(whole) > RING_BYTES), "an empty ring takes what it can hold"
        if start is not None:
            taken.append((reader.take(start, len(whole)), whole))
        for _ in range(data.draw(st.integers(0, len(taken)))):
            taken.pop(data.draw(st.integers(0, len(taken) - 1)))
        assert all(array.tobytes() == expected for array, expected in taken)
        reader.give_back()


def test_a_ring_is_written_until_it_is_full_and_again_as_it_is_given_back() -> None:
    writer, reader = ring_pair(100)
    pieces = [take_next(writer, reader, num_bytes) for num_bytes in (40, 40, 20)]
    assert writer.write([view(bytes(1))], 1) is None
    del pieces[1]
    reader.give_back()
    assert writer.write([view(bytes(1))], 1) is None, "what lies before it is in use"
    del pieces[0]
    reader.give_back()
    pieces.append(take_next(writer, reader, 80))
    assert writer.write([view(bytes(1))], 1) is None


def test_what_does_not_fit_before_the_end_of_the_ring_begins_at_its_start() -> None:
    writer, reader = ring_pair(100)
    first, second = (take_next(writer, reader, num_bytes) for num_bytes in (50, 30))
    del first
    reader.give_back()
    third = take_next(writer, reader, 40)
    assert writer.write([view(bytes(20))], 20) is None
    assert second.tobytes() == bytes([30]) * 30
    assert third.tobytes() == bytes([40]) * 40


def test_a_ring_in_which_nothing_lies_begins_anew_at_its_start() -> None:
    writer, reader = ring_pair(100)
    for number in range(5):
        assert writer.write([view(bytes(60))], 60) == 100 * number
        reader.take(100 * number, 60)
        reader.give_back()


def test_views_of_a_piece_keep_it() -> None:
    writer, reader = ring_pair(100)
    last = take_next(writer, reader, 100)[20:].reshape(8, 10)[1:].view(np.int16)
    reader.give_back()
    assert writer.write([view(bytes(1))], 1) is None
    del last
    reader.give_back()
    assert writer.write([view(bytes(1))], 1) == 100


@pytest.mark.parametrize(
    ("start", "num_bytes"), [(1, 10), (-1, 10), (RING_BYTES, 10), (2**40, 10), (0, 0), (0, RING_BYTES + 1)]
)
def test_places_that_are_not_the_next_are_refused(start: int, num_bytes: int) -> None:
    writer, reader = ring_pair()
    writer.write([view(bytes(20))], 20)
    with pytest.raises(ChannelError, match="not the next"):
        reader.take(start, num_bytes)


def test_what_was_taken_cannot_be_taken_again() -> None:
    writer, reader = ring_pair()
    start = writer.write([view(bytes(20))], 20)
    assert start == 0
    reader.take(0, 20)
    with pytest.raises(ChannelError, match="not the next"):
        reader.take(0, 20)


@pytest.mark.parametrize("start", [21, RING_BYTES - 1, RING_BYTES + 1, 2 * RING_BYTES])
def test_only_the_start_of_the_ring_may_be_skipped_to(start: int) -> None:
    writer, reader = ring_pair()
    writer.write([view(bytes(20))], 20)
    reader.take(0, 20)
    with pytest.raises(ChannelError, match="not the next"):
        reader.take(start, 20)


def test_nothing_beyond_the_end_of_the_ring_is_read() -> None:
    writer, reader = ring_pair()
    writer.write([view(bytes(60))], 60)
    reader.take(0, 60)
    with pytest.raises(ChannelError, match="not the next"):
        reader.take(60, RING_BYTES - 59)


@pytest.mark.parametrize("taken", [-1, 9, 22, 2**62])
def test_a_reader_that_takes_what_was_not_written_or_gives_back_is_noticed(taken: int) -> None:
    writer, reader = ring_pair()
    writer.write([view(bytes(20))], 20)
    reader.take(0, 10)
    reader.give_back()
    writer.write([view(bytes(1))], 1)
    reader._taken[0] = taken
    with pytest.raises(ChannelError, match="forged"):
        writer.write([view(bytes(1))], 1)


def test_nothing_of_it_has_a_name() -> None:
    before = set(os.listdir("/dev/shm"))
    pair = ring_pair()
    assert set(os.listdir("/dev/shm")) == before
    del pair


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    first, second = socket.socketpair()
    with first, second:
        yield first, second


def test_without_bytes_there_is_no_ring(sockets: tuple[socket.socket, socket.socket]) -> None:
    assert send_ring(sockets[0], 0) is None
    assert receive_ring(sockets[1], RING_BYTES) is None


def test_where_memory_cannot_be_shared_there_is_no_ring(
    sockets: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str, flags: int) -> int:
        raise PermissionError("not in this container")

    monkeypatch.setattr(os, "memfd_create", refuse)
    assert send_ring(sockets[0], RING_BYTES) is None
    assert receive_ring(sockets[1], RING_BYTES) is None


def test_more_than_the_limit_is_not_mapped(sockets: tuple[socket.socket, socket.socket]) -> None:
    send_ring(sockets[0], RING_BYTES + 1)
    with pytest.raises(ChannelError, match="exceeds the limit"):
        receive_ring(sockets[1], RING_BYTES)


@pytest.mark.parametrize("num_bytes", [0, _HEADER_BYTES, _HEADER_BYTES + RING_BYTES + 1])
def test_a_file_of_another_size_is_refused(
    sockets: tuple[socket.socket, socket.socket], num_bytes: int
) -> None:
    pass_file(sockets[0], num_bytes, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    with pytest.raises(ChannelError, match="not as large"):
        receive_ring(sockets[1], RING_BYTES)


def test_a_file_that_can_shrink_under_the_reader_is_refused(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    pass_file(sockets[0], _HEADER_BYTES + RING_BYTES, seals=0)
    with pytest.raises(ChannelError, match="can shrink"):
        receive_ring(sockets[1], RING_BYTES)


def pass_file(sender: socket.socket, num_bytes: int, seals: int) -> None:
    file = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(file, num_bytes)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    socket.send_fds(sender, [struct.pack("<Q", RING_BYTES)], [file])
    os.close(file)


def test_a_size_without_a_file_and_silence_are_refused(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    sockets[0].sendall(struct.pack("<Q", RING_BYTES))
    with pytest.raises(ChannelError, match="exceeds the limit"):
        receive_ring(sockets[1], RING_BYTES)
    sockets[0].close()
    with pytest.raises(ChannelError, match="hung up"):
        receive_ring(sockets[1], RING_BYTES)


def test_no_descriptor_stays_open(sockets: tuple[socket.socket, socket.socket]) -> None:
    rings = [(send_ring(sockets[0], RING_BYTES), receive_ring(sockets[1], RING_BYTES)) for _ in range(3)]
    send_ring(sockets[0], RING_BYTES)
    with pytest.raises(ChannelError):
        receive_ring(sockets[1], 1)
    # What Python's mmap keeps are descriptors of its own, which end with the mapping.
    del rings
    assert not [name for name in os.listdir("/proc/self/fd") if "memfd:dspine" in _target(name)]


def _target(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except OSError:
        return ""
