"""Bulk between two processes of one node: a ring of bytes in memory that both map, told of over their socket.

The memory is an anonymous file whose descriptor the writer passes to the reader, so nothing of it has a name, and it is
gone with the last of the two. It is sealed against shrinking: a reader never touches memory that a writer took away.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import socket
import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dspine_cluster.errors import ChannelError

_HEADER_BYTES = mmap.PAGESIZE
"""Before the ring: how many bytes the reader has taken since the start, int64."""
_SIZE = struct.Struct("<Q")
_IS_SUPPORTED = hasattr(os, "memfd_create")
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL if _IS_SUPPORTED else 0

logger = logging.getLogger(__name__)


class _Mapped:
    def __init__(self, file: int, ring_bytes: int) -> None:
        mapped = np.frombuffer(mmap.mmap(file, _HEADER_BYTES + ring_bytes), np.uint8)
        self._taken = mapped[:8].view(np.int64)  # [1]; written by the reader alone
        self._ring = mapped[_HEADER_BYTES:]

    def _parts(self, start: int, num_bytes: int) -> list[npt.NDArray[np.uint8]]:
        """Where the bytes from position `start` on lie: one piece, or two where the ring ends between them."""
        first = start % len(self._ring)
        end = first + num_bytes
        if end <= len(self._ring):
            return [self._ring[first:end]]
        return [self._ring[first:], self._ring[: end - len(self._ring)]]


class RingWriter(_Mapped):
    """The side that made the ring."""

    def __init__(self, ring_bytes: int) -> None:
        self.file = os.memfd_create("dspine", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        """To be passed to the reader with `send_ring`, which closes it."""
        os.ftruncate(self.file, _HEADER_BYTES + ring_bytes)
        fcntl.fcntl(self.file, fcntl.F_ADD_SEALS, _SEALS)
        super().__init__(self.file, ring_bytes)
        self._written = 0
        self._seen_taken = 0

    def write(self, arrays: Sequence[memoryview], num_bytes: int) -> int | None:
        """Put bytes, `num_bytes` together, into the ring; their position, or None if there is no room now.

        Raises:
            ChannelError: the reader says that it has taken what was never written.
        """
        taken = int(self._taken[0])
        if not self._seen_taken <= taken <= self._written:
            raise ChannelError("the peer forged how much it has taken out of the shared memory")
        self._seen_taken = taken
        if num_bytes > len(self._ring) - (self._written - taken):
            return None
        start = position = self._written
        for array in arrays:
            source = np.frombuffer(array, np.uint8)
            for part in self._parts(position, len(source)):
                part[:] = source[: len(part)]
                source = source[len(part) :]
                position += len(part)
        assert position == start + num_bytes
        self._written = position
        return start


class RingReader(_Mapped):
    """The other side. What it is told is checked: it reads what was written next and nothing else."""

    def __init__(self, file: int, ring_bytes: int) -> None:
        super().__init__(file, ring_bytes)
        self._num_taken = 0

    def take(self, start: int, num_bytes: int) -> npt.NDArray[np.uint8]:
        """A copy of the next bytes, whose place is free again.

        Raises:
            ChannelError: they are not the next, or more than the ring holds.
        """
        if start != self._num_taken or not 0 < num_bytes <= len(self._ring):
            raise ChannelError("the peer named a place in the shared memory that is not the next")
        data = np.empty(num_bytes, np.uint8)
        first = 0
        for part in self._parts(start, num_bytes):
            data[first : first + len(part)] = part
            first += len(part)
        self._num_taken += num_bytes
        self._taken[0] = self._num_taken
        return data


def send_ring(connected: socket.socket, ring_bytes: int) -> RingWriter | None:
    """Make a ring and pass it over a Unix socket; with 0 bytes, or where that cannot be, say that there is none."""
    ring = _make(ring_bytes) if ring_bytes and _IS_SUPPORTED else None
    if ring is None:
        connected.sendall(_SIZE.pack(0))
        return None
    try:
        socket.send_fds(connected, [_SIZE.pack(ring_bytes)], [ring.file])
    finally:
        os.close(ring.file)
    return ring


def _make(ring_bytes: int) -> RingWriter | None:
    try:
        return RingWriter(ring_bytes)
    except OSError as error:
        logger.warning("features go through the socket, because memory cannot be shared: %s", error)
        return None


def receive_ring(connected: socket.socket, max_bytes: int) -> RingReader | None:
    """What `send_ring` sends.

    Raises:
        ChannelError: it is larger than `max_bytes`, or not what it is said to be.
    """
    data, files, _, _ = socket.recv_fds(connected, _SIZE.size, 1, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
    try:
        if len(data) != _SIZE.size:
            raise ChannelError("the peer hung up before it told of its shared memory")
        (ring_bytes,) = _SIZE.unpack(data)
        if not ring_bytes:
            return None
        if len(files) != 1 or ring_bytes > max_bytes:
            raise ChannelError(f"the peer's shared memory of {ring_bytes} bytes exceeds the limit")
        if os.fstat(files[0]).st_size != _HEADER_BYTES + ring_bytes or not _is_sealed(files[0]):
            raise ChannelError("the peer's shared memory is not as large as it says, or can shrink")
        return RingReader(files[0], ring_bytes)
    finally:
        for file in files:
            os.close(file)


def _is_sealed(file: int) -> bool:
    try:
        return fcntl.fcntl(file, fcntl.F_GET_SEALS) & _SEALS == _SEALS
    except OSError:
        return False
