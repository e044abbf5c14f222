"""The sending half of a socket channel: what waits to be sent, and how much the peer lets be sent."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from dspine_cluster.errors import ChannelClosedError, ChannelError
from dspine_cluster.transport.channel import ChannelLimits
from dspine_cluster.transport.messages import FeatureBatch, Features, Message
from dspine_cluster.transport.shared_ring import RingWriter
from dspine_cluster.transport.wire import Buffer, Credit, Encoder

PASS_BYTES = 1 << 20
"""Read or written at a stretch before the other direction gets its turn."""
_MAX_BUFFERS = 512
"""Handed to the kernel at once, about: it takes 1,024."""


class _Outgoing(NamedTuple):
    buffers: list[Buffer]
    queued_bytes: int
    """Counted against `max_queued_bytes`; 0 for `Features`, which credits bound."""


class SocketWriter:
    """Rounds go before bulk. Whoever queues something may write it, as may the channel's thread: whoever finds the
    other at it leaves it to that. Nothing blocks for longer than a pass of the other."""

    def __init__(
        self, connected: socket.socket, limits: ChannelLimits, credit_bytes: int, ring: RingWriter | None
    ) -> None:
        """`credit_bytes` are the peer's. `ring` carries the features of rounds as far as it has room."""
        self._socket = connected
        self._limits = limits
        self._ring = ring
        self._encoder = Encoder()
        self._credit_encoder = Encoder()
        self._rounds: deque[_Outgoing] = deque()
        self._bulk: deque[_Outgoing] = deque()
        self._lock = threading.Lock()
        """Guards the socket's writing side and the frame that is being written."""
        self._writing: list[Buffer] = []
        self._writing_bytes = 0
        """How much of the queued bytes is being written."""
        self._count_lock = threading.Lock()
        """Guards the three counts below."""
        self._max_credit_bytes = self._credit_bytes = credit_bytes
        self._queued_bytes = 0
        self._owed_bytes = 0
        self.is_broken = False
        """Nothing can be written any more; what the peer sent before may still be read."""

    @property
    def free_credit_bytes(self) -> int:
        return self._credit_bytes

    @property
    def queued_bytes(self) -> int:
        """Of rounds that wait or are being written."""
        return self._queued_bytes

    @property
    def owes_credit(self) -> bool:
        """Whether the peer has not been told yet of all that it may send again."""
        return self._owed_bytes > 0

    def queue_features(self, message: Features | FeatureBatch, *, is_bulk: bool) -> bool:
        """False if the credits do not suffice.

        Raises:
            ChannelError: the peer has broken the ring.
            ValueError: the message exceeds a limit.
        """
        with self._count_lock:
            if message.num_bytes > self._credit_bytes:
                return False
            self._credit_bytes -= message.num_bytes
        ring = None if is_bulk else self._ring  # what is overtaken would hold up the ring
        encode, limits = self._encoder.encode, self._limits
        frames = [_Outgoing(encode(part, limits, ring), 0) for part in self._fragments(message)]
        (self._bulk if is_bulk else self._rounds).extend(frames)
        return True

    def queue_round(self, message: Message) -> None:
        """
        Raises:
            ChannelClosedError: more would wait than may.
            ValueError: the message exceeds a limit.
        """
        buffers = self._encoder.encode(message, self._limits)
        num_bytes = sum(map(len, buffers))
        with self._count_lock:
            self._queued_bytes += num_bytes
            is_over = self._queued_bytes > self._limits.max_queued_bytes
        if is_over:
            raise ChannelClosedError("the peer has stopped reading")
        self._rounds.append(_Outgoing(buffers, num_bytes))

    def owe_credit(self, num_bytes: int) -> None:
        """Tell the peer with what is written next that it may send so much more."""
        with self._count_lock:
            self._owed_bytes += num_bytes

    def take_back(self, num_bytes: int) -> None:
        """The peer lets so much more be sent.

        Raises:
            ChannelError: it was never taken.
        """
        with self._count_lock:
            self._credit_bytes += num_bytes
            if num_bytes <= 0 or self._credit_bytes > self._max_credit_bytes:
                raise ChannelError("the peer returned credits that it never took")

    def try_write(self) -> bool:
        """Write what the socket takes now, unless somebody does. Returns whether the channel's thread has to look."""
        if not self._lock.acquire(blocking=False):
            return True
        try:
            return self._write()
        finally:
            self._lock.release()

    def write(self) -> bool:
        """Write what the socket takes now, one pass at most. Returns whether more is to be written."""
        with self._lock:
            return self._write()

    def close(self) -> None:
        """Write nothing more, and let go of all that waits."""
        with self._lock:
            self.is_broken = True
            self._rounds.clear()
            self._bulk.clear()
            self._ring = None  # now rather than with the next garbage collection: it holds a descriptor

    def _fragments(self, message: Features | FeatureBatch) -> Sequence[Features | FeatureBatch]:
        if isinstance(message, FeatureBatch) or message.num_bytes <= self._limits.fragment_bytes:
            return [message]
        num_rows = max(1, self._limits.fragment_bytes // message.rows.shape[1])
        return [
            Features(message.uid, message.start + first, message.rows[first : first + num_rows])
            for first in range(0, len(message.rows), num_rows)
        ]

    def _write(self) -> bool:
        """Write rounds, then bulk, until nothing is left (False), or the socket is full or a turn is over (True)."""
        num_left = PASS_BYTES
        while not self.is_broken and num_left > 0:
            if not self._writing and not self._start_next():
                return False
            try:
                num_bytes = self._socket.sendmsg(self._writing)
            except BlockingIOError:
                return True
            except OSError:
                self.is_broken = True
                break
            num_left -= num_bytes
            self._drop_written(num_bytes)
        return not self.is_broken

    def _start_next(self) -> bool:
        """Make the next frames those that are being written: some rounds together, or one fragment of bulk."""
        self._writing = []
        if self._writing_bytes:
            with self._count_lock:
                self._queued_bytes -= self._writing_bytes
            self._writing_bytes = 0
        if self._owed_bytes:
            with self._count_lock:
                owed_bytes, self._owed_bytes = self._owed_bytes, 0
            self._writing += self._credit_encoder.encode(Credit(owed_bytes), self._limits)
        while self._rounds and len(self._writing) < _MAX_BUFFERS:
            outgoing = self._rounds.popleft()
            self._writing += outgoing.buffers
            self._writing_bytes += outgoing.queued_bytes
        if not self._writing and self._bulk:
            self._writing += self._bulk.popleft().buffers
        return bool(self._writing)

    def _drop_written(self, num_bytes: int) -> None:
        num_done = 0
        while num_bytes and num_bytes >= len(self._writing[num_done]):
            num_bytes -= len(self._writing[num_done])
            num_done += 1
        del self._writing[:num_done]
        if num_bytes:
            self._writing[0] = memoryview(self._writing[0])[num_bytes:]
