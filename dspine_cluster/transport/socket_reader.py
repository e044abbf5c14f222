"""The receiving half of a socket channel: bytes into messages, as far as limits and credits go."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from dspine_cluster.errors import ChannelClosedError, ChannelError
from dspine_cluster.transport.channel import ChannelLimits
from dspine_cluster.transport.inbox import Inbox
from dspine_cluster.transport.messages import FEATURES, Message
from dspine_cluster.transport.shared_ring import RingReader
from dspine_cluster.transport.socket_writer import PASS_BYTES
from dspine_cluster.transport.wire import Credit, Decoder

_MESSAGE_BYTES = 256
"""What a small message takes in memory beyond its bytes on the wire."""


class SocketReader:
    """Any thread may read, one after the other."""

    def __init__(
        self,
        connected: socket.socket,
        limits: ChannelLimits,
        inbox: Inbox,
        on_credit: Callable[[int], None],
        ring: RingReader | None,
    ) -> None:
        """Messages go to `inbox`; `on_credit` is told how many bytes the peer lets be sent again, and may raise
        ChannelError."""
        self._socket = connected
        self._limits = limits
        self._inbox = inbox
        self._on_credit = on_credit
        self._ring = ring
        self._decoder = Decoder(
            max_header_bytes=limits.max_header_bytes, max_payload_bytes=limits.max_payload_bytes, ring=ring
        )
        self._lock = threading.Lock()
        """Guards the socket's reading side and the frame that is being read."""
        self._is_closed = False

    def read(self) -> None:
        """Put what has arrived into the inbox, one pass at most.

        Raises:
            ChannelError: the peer has closed, or broke the protocol: nothing more can be read.
            OSError: the connection broke.
        """
        with self._lock:
            num_left = PASS_BYTES
            while num_left > 0 and not self._is_closed:
                buffer = self._decoder.buffer()
                try:
                    num_bytes = self._socket.recv_into(buffer)
                except BlockingIOError:
                    return
                if num_bytes == 0:
                    where = "" if self._decoder.is_between_frames else " in the middle of a message"
                    raise ChannelClosedError(f"the peer closed the channel{where}")
                num_left -= num_bytes
                self._deliver(num_bytes)
                if num_bytes < len(buffer):  # that was all
                    return

    def give_back(self) -> None:
        """Let the peer have the shared memory that nothing received refers to any more."""
        ring = self._ring
        if ring is not None:
            ring.give_back()

    def close(self) -> None:
        """Read nothing more: the socket may be closed from now on."""
        with self._lock:
            self._is_closed = True
            self._ring = None  # now rather than with the next garbage collection: it holds a descriptor
            self._decoder.drop_ring()

    def _deliver(self, num_bytes: int) -> None:
        """Put the messages that the next `num_bytes` of the decoder's buffer complete into the inbox."""
        messages: list[Message] = []
        messages_bytes = features_bytes = 0
        try:
            for frame, frame_bytes in self._decoder.advance(num_bytes):
                if isinstance(frame, Credit):
                    self._on_credit(frame.num_bytes)
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
