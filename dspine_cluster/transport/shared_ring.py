"""Bulk between two processes of one node: a ring of bytes in memory that both map, told of over their socket.

The memory is an anonymous file whose descriptor the writer passes to the reader, so nothing of it has a name, and it is
gone with the last of the two. It is sealed against shrinking: a reader never touches memory that a writer took away.
What is in it is read in place, so it lies in one piece. A ring in which nothing lies begins anew at its start, because
memory that was used last is the fastest.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import socket
import struct
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dspine_cluster.errors import ChannelError

_HEADER_BYTES = mmap.PAGESIZE
"""Before the ring: the position up to which the reader has given everything back, int64."""
_SIZE = struct.Struct("<Q")
_IS_SUPPORTED = hasattr(os, "memfd_create")
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL if _IS_SUPPORTED else 0

logger = logging.getLogger(__name__)


class _Mapped:
    """Positions in the stream of bytes only grow; the one at `position` lies at `position` modulo the ring's size."""

    def __init__(self, file: int, ring_bytes: int) -> None:
        self._memory = mmap.mmap(file, _HEADER_BYTES + ring_bytes)
        self._size = ring_bytes
        self._taken = np.frombuffer(self._memory, np.int64, 1)
        """[1]: written by the reader alone."""

    def _piece(self, position: int, num_bytes: int) -> npt.NDArray[np.uint8]:
        """The bytes from `position` on. Views of it keep it alive."""
        return np.frombuffer(self._memory, np.uint8, num_bytes, _HEADER_BYTES + position % self._size)


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
        start = self._written
        is_empty = taken == start
        if is_empty or start % self._size + num_bytes > self._size:
            start = -(-start // self._size) * self._size
        if start + num_bytes - (start if is_empty else taken) > self._size:
            return None
        place = _HEADER_BYTES + start % self._size
        for array in arrays:
            self._memory[place : place + len(array)] = array
            place += len(array)
        self._written = start + num_bytes
        return start


class _Lent(NamedTuple):
    start: int
    piece: weakref.ref[npt.NDArray[np.uint8]]


class RingReader(_Mapped):
    """The other side. What it is told is checked: it reads what was written next and nothing else."""

    def __init__(self, file: int, ring_bytes: int) -> None:
        super().__init__(file, ring_bytes)
        self._end = 0
        """Of what has been taken."""
        self._lent: deque[_Lent] = deque()  # oldest first
        self._lock = threading.Lock()
        """Guards the two."""

    def take(self, start: int, num_bytes: int) -> npt.NDArray[np.uint8]:
        """The next bytes, in place. The writer may change them at any time; it should not before nothing refers to
        them any more, and `give_back` has said so.

        Raises:
            ChannelError: they are not the next, or more than the ring holds.
        """
        first = start % self._size
        is_next = start == self._end or (first == 0 and 0 < start - self._end < self._size)
        if not is_next or not 0 < num_bytes <= self._size - first:
            raise ChannelError("the peer named a place in the shared memory that is not the next")
        piece = self._piece(start, num_bytes)
        with self._lock:
            self._end = start + num_bytes
            self._lent.append(_Lent(start, weakref.ref(piece)))
        return piece

    def give_back(self) -> None:
        """Let the writer have what nothing refers to any more, up to the oldest piece that something does refer to."""
        if not self._lent:
            return
        with self._lock:
            while self._lent and self._lent[0].piece() is None:
                self._lent.popleft()
            self._taken[0] = self._lent[0].start if self._lent else self._end


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
