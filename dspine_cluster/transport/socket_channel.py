"""A channel over a connected, authenticated socket, with one thread that reads, and writes what `send` could not."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dspine_cluster.errors import ChannelClosedError, ChannelError
from dspine_cluster.transport.channel import ChannelLimits
from dspine_cluster.transport.handshake import Peer
from dspine_cluster.transport.inbox import Inbox
from dspine_cluster.transport.messages import FEATURES, FeatureBatch, Features, Hello, Message
from dspine_cluster.transport.shared_ring import RingReader, RingWriter
from dspine_cluster.transport.wire import Buffer, Credit, Decoder, Encoder

_PASS_BYTES = 1 << 20
"""Read or written at a stretch before the other direction gets its turn."""
_MESSAGE_BYTES = 256
"""What a small message takes in memory beyond its bytes on the wire."""
_MAX_BUFFERS = 512
"""Handed to the kernel at once, about: it takes 1,024."""
_HANG_UP = select.POLLHUP | select.POLLERR | select.POLLNVAL


class _Outgoing(NamedTuple):
    buffers: list[Buffer]
    queued_bytes: int
    """Counted against `max_queued_bytes`; 0 for `Features`, which credits bound."""


class SocketChannel:
    """See `Channel`. `send` writes a round to the socket at once if it can, so that it costs no thread switch;
    `Features` are left to the thread or the next round, so that many small ones are written together, and a
    `FeatureBatch` to the round that it is for. Between processes of one node the features of rounds go through memory
    that both share, as far as it has room."""

    def __init__(
        self,
        connected: socket.socket,
        peer: Peer,
        limits: ChannelLimits,
        ring: RingWriter | RingReader | None = None,
    ) -> None:
        """`ring` is the memory shared with the peer, in the direction that it has."""
        connected.setblocking(False)
        self._socket = connected
        self._peer = peer
        self._limits = limits
        self._inbox = Inbox()
        self._encoder = Encoder()
        self._credit_encoder = Encoder()
        self._decoder = Decoder(
            max_header_bytes=limits.max_header_bytes,
            max_payload_bytes=limits.max_payload_bytes,
            ring=ring if isinstance(ring, RingReader) else None,
        )
        self._ring = ring if isinstance(ring, RingWriter) else None
        self._rounds: deque[_Outgoing] = deque()
        self._bulk: deque[_Outgoing] = deque()
        self._write_lock = threading.Lock()
        """Guards the socket's writing side and the frame that is being written."""
        self._writing: list[Buffer] = []
        self._count_lock = threading.Lock()
        """Guards the two counts below."""
        self._credit_bytes = peer.credit_bytes
        self._queued_bytes = 0
        self._is_broken = False
        """Nothing can be written any more; what the peer sent before may still be read."""
        self._is_awake = False
        """The thread has been told that there is something to write or a reason to stop, and has not looked yet."""
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.setblocking(False)
        self._wake_sender.setblocking(False)

    @property
    def peer(self) -> Hello:
        return self._peer.hello

    @property
    def free_credit_bytes(self) -> int:
        return self._credit_bytes

    def send(self, message: Message, *, bulk: bool = False) -> bool:
        if self._inbox.close_reason is not None or self._is_broken:
            raise ChannelClosedError(self._inbox.close_reason or "the peer is gone")
        if isinstance(message, FEATURES):
            with self._count_lock:
                if message.num_bytes > self._credit_bytes:
                    return False
                self._credit_bytes -= message.num_bytes
            ring = None if bulk else self._ring  # what is overtaken would hold up the ring
            frames = [self._encode_features(part, ring) for part in self._fragments(message)]
            (self._bulk if bulk else self._rounds).extend(_Outgoing(frame, 0) for frame in frames)
            if not isinstance(message, FeatureBatch):
                self._wake()
        else:
            self._queue_round(self._encoder.encode(message, self._limits))
            self._write_or_wake()
        return True

    def receive(self) -> list[Message]:
        messages, num_bytes, features_bytes = self._inbox.take()
        if features_bytes:
            credit = self._credit_encoder.encode(Credit(features_bytes), self._limits)
            self._rounds.append(_Outgoing(credit, 0))
            self._write_or_wake()
        if self._is_full(num_bytes, features_bytes):
            self._wake()
        return messages

    def set_ready_callback(self, callback: Callable[[], None]) -> None:
        self._inbox.set_callback(callback)

    def close(self) -> None:
        self._inbox.close("this side closed the channel")
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._wake()

    def start(self) -> None:
        """Run the channel in a thread of its own."""
        threading.Thread(target=self.run, name=f"channel-{self.peer.role}", daemon=True).start()

    def run(self) -> None:
        """Read and write until either side closes; returns with the socket closed."""
        reason = "the channel's thread failed"
        try:
            self._carry()
        except ChannelError as error:
            reason = str(error)
        except OSError as error:
            reason = f"the connection broke: {error}"
        finally:
            with self._write_lock:
                self._is_broken = True
                self._socket.close()
                self._rounds.clear()
                self._bulk.clear()
            self._wake_sender.close()
            self._wake_receiver.close()
            self._ring = None  # now rather than with the next garbage collection: it holds a descriptor
            self._decoder.drop_ring()
            self._inbox.close(reason)

    def _carry(self) -> None:
        poller = select.poll()
        poller.register(self._wake_receiver, select.POLLIN)
        while self._inbox.close_reason is None:
            wants_write = self._write()
            is_full = self._is_full(self._inbox.num_bytes, self._inbox.features_bytes)
            poller.register(
                self._socket, (0 if is_full else select.POLLIN) | (select.POLLOUT if wants_write else 0)
            )
            for file, event in poller.poll():
                if file == self._wake_receiver.fileno():
                    self._wake_receiver.recv(4096)
                    self._is_awake = False
                elif event & (select.POLLIN | _HANG_UP):
                    self._read()

    def _read(self) -> None:
        num_left = _PASS_BYTES
        while num_left > 0:
            try:
                num_bytes = self._socket.recv_into(self._decoder.buffer())
            except BlockingIOError:
                return
            if num_bytes == 0:
                where = "" if self._decoder.is_between_frames else " in the middle of a message"
                raise ChannelClosedError(f"the peer closed the channel{where}")
            num_left -= num_bytes
            self._deliver(num_bytes)

    def _deliver(self, num_bytes: int) -> None:
        """Put the messages that the next `num_bytes` of the decoder's buffer complete into the inbox."""
        messages: list[Message] = []
        messages_bytes = features_bytes = 0
        try:
            for frame, frame_bytes in self._decoder.advance(num_bytes):
                if isinstance(frame, Credit):
                    self._take_back(frame.num_bytes)
                    continue
                if isinstance(frame, FEATURES):
                    features_bytes += frame.num_bytes
                    if self._inbox.features_bytes + features_bytes > self._limits.credit_bytes:
                        raise ChannelError("the peer sent Features beyond its credits")
                messages.append(frame)
                messages_bytes += frame_bytes + _MESSAGE_BYTES
        finally:
            if messages:
                self._inbox.put(messages, messages_bytes)

    def _take_back(self, num_bytes: int) -> None:
        with self._count_lock:
            self._credit_bytes += num_bytes
            if num_bytes <= 0 or self._credit_bytes > self._peer.credit_bytes:
                raise ChannelError("the peer returned credits that it never took")

    def _is_full(self, num_bytes: int, features_bytes: int) -> bool:
        return num_bytes - features_bytes > self._limits.max_queued_bytes

    def _fragments(self, message: Features | FeatureBatch) -> Sequence[Features | FeatureBatch]:
        if isinstance(message, FeatureBatch) or message.num_bytes <= self._limits.fragment_bytes:
            return [message]
        num_rows = max(1, self._limits.fragment_bytes // message.rows.shape[1])
        return [
            Features(message.uid, message.start + first, message.rows[first : first + num_rows])
            for first in range(0, len(message.rows), num_rows)
        ]

    def _encode_features(self, message: Features | FeatureBatch, ring: RingWriter | None) -> list[Buffer]:
        buffers = None
        if ring is not None:
            try:
                buffers = self._encoder.encode_into(ring, message, self._limits)
            except ChannelError as error:
                self._inbox.close(str(error))
                self.close()
                raise ChannelClosedError(str(error)) from error
        return buffers or self._encoder.encode(message, self._limits)

    def _queue_round(self, buffers: list[Buffer]) -> None:
        num_bytes = sum(len(buffer) for buffer in buffers)
        with self._count_lock:
            self._queued_bytes += num_bytes
            is_over = self._queued_bytes > self._limits.max_queued_bytes
        if is_over:
            self._inbox.close("the peer has stopped reading")
            self.close()
            raise ChannelClosedError("the peer has stopped reading")
        self._rounds.append(_Outgoing(buffers, num_bytes))

    def _write_or_wake(self) -> None:
        """Write now what the socket takes; the thread writes the rest, or all of it if it is writing already."""
        if not self._write_lock.acquire(blocking=False):
            self._wake()
            return
        try:
            wants_write = self._write_locked()
        finally:
            self._write_lock.release()
        if wants_write:
            self._wake()

    def _write(self) -> bool:
        with self._write_lock:
            return self._write_locked()

    def _write_locked(self) -> bool:
        """Write rounds, then bulk, until nothing is left (False), or the socket is full or a turn is over (True)."""
        num_left = _PASS_BYTES
        while not self._is_broken and num_left > 0:
            if not self._writing and not self._start_next():
                return False
            try:
                num_bytes = self._socket.sendmsg(self._writing)
            except BlockingIOError:
                return True
            except OSError:
                self._is_broken = True
                break
            num_left -= num_bytes
            self._drop_written(num_bytes)
        return not self._is_broken

    def _start_next(self) -> bool:
        """Make the next frames those that are being written: some rounds together, or one fragment of bulk."""
        self._writing = []
        queued_bytes = 0
        while self._rounds and len(self._writing) < _MAX_BUFFERS:
            outgoing = self._rounds.popleft()
            self._writing += outgoing.buffers
            queued_bytes += outgoing.queued_bytes
        if queued_bytes:
            with self._count_lock:
                self._queued_bytes -= queued_bytes
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

    def _wake(self) -> None:
        if self._is_awake:
            return
        self._is_awake = True
        with contextlib.suppress(OSError):
            self._wake_sender.send(b"\0")
