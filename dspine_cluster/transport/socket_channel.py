"""A channel over a connected, authenticated socket, with a thread for what loops do not read and write themselves."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable

from dspine_cluster.errors import ChannelClosedError, ChannelError
from dspine_cluster.transport.channel import ChannelLimits
from dspine_cluster.transport.handshake import Peer
from dspine_cluster.transport.inbox import Inbox
from dspine_cluster.transport.messages import FEATURES, FeatureBatch, Hello, Message
from dspine_cluster.transport.shared_ring import RingReader, RingWriter
from dspine_cluster.transport.socket_reader import SocketReader
from dspine_cluster.transport.socket_writer import SocketWriter

_HANG_UP = select.POLLHUP | select.POLLERR | select.POLLNVAL
_HAS_EPOLL = hasattr(select, "epoll")


class SocketChannel:
    """See `Channel`. `send` writes a round to the socket at once if it can, so that it costs no thread switch;
    `Features` are left to the thread or the next round, so that many small ones are written together, and a
    `FeatureBatch` to the round that it is for. Between processes of one node the features of rounds go through memory
    that both share, as far as it has room. The thread reads, except while a `Waiter` does."""

    can_be_read_elsewhere = _HAS_EPOLL
    """Whether what the thread waits for can be changed while it waits."""

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
        self._writer = SocketWriter(
            connected, limits, peer.credit_bytes, ring if isinstance(ring, RingWriter) else None
        )
        self._reader = SocketReader(
            connected,
            limits,
            self._inbox,
            self._writer.take_back,
            ring if isinstance(ring, RingReader) else None,
        )
        self.is_watched = False
        """A `Waiter` reads it, too: credits may wait until something else is sent, or until it waits."""
        self._is_awake = False
        """The thread has been told that there is something to write or a reason to stop, and has not looked yet."""
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.setblocking(False)
        self._wake_sender.setblocking(False)
        self._poller = select.epoll() if _HAS_EPOLL else select.poll()
        self._poller.register(self._wake_receiver, select.POLLIN)
        self._poller.register(connected, 0)
        self._interest_lock = threading.Lock()
        """Guards what the thread waits for: the four below."""
        self._interest = 0
        self._wants_write = False
        self._is_read_elsewhere = False
        self._has_ended = False

    @property
    def peer(self) -> Hello:
        return self._peer.hello

    @property
    def free_credit_bytes(self) -> int:
        return self._writer.free_credit_bytes

    def send(self, message: Message, *, bulk: bool = False) -> bool:
        if self._inbox.close_reason is not None or self._writer.is_broken:
            raise ChannelClosedError(self._inbox.close_reason or "the peer is gone")
        try:
            if isinstance(message, FEATURES):
                if not self._writer.queue_features(message, is_bulk=bulk):
                    return False
                if bulk or not isinstance(message, FeatureBatch):
                    self._wake()
            else:
                self._reader.give_back()
                self._writer.queue_round(message)
                self._write_or_wake()
        except ChannelError as error:
            self._inbox.close(str(error))
            self.close()
            raise ChannelClosedError(str(error)) from error
        return True

    def receive(self) -> list[Message]:
        self._settle()
        if self._inbox.is_empty:
            return []
        messages, num_bytes, features_bytes = self._inbox.take()
        if features_bytes:
            self._writer.owe_credit(features_bytes)
            if not self.is_watched:
                self._settle()
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
            self._writer.close()
            self._reader.close()
            with self._interest_lock:
                self._has_ended = True
                self._socket.close()
                if _HAS_EPOLL and isinstance(self._poller, select.epoll):
                    self._poller.close()
            self._wake_sender.close()
            self._wake_receiver.close()
            self._inbox.close(reason)

    def fileno(self) -> int:
        """Of the socket; -1 once it is closed."""
        return self._socket.fileno()

    def read_elsewhere(self, is_elsewhere: bool) -> None:
        """Have the thread leave all reading to whoever calls `read`, or take it back."""
        if is_elsewhere:
            self._settle()
        self._is_read_elsewhere = is_elsewhere
        self._update_interest()

    def read(self) -> bool:
        """Read what has arrived in the calling thread. Returns whether there may be more later."""
        try:
            self._reader.read()
        except ChannelError as error:
            self._inbox.close(str(error))
        except OSError as error:
            self._inbox.close(f"the connection broke: {error}")
        if self._inbox.close_reason is None:
            return True
        self._wake()
        return False

    def _carry(self) -> None:
        while self._inbox.close_reason is None:
            self._wants_write = self._writer.write()
            self._update_interest()
            for file, event in self._poller.poll():
                if file == self._wake_receiver.fileno():
                    self._wake_receiver.recv(4096)
                    self._is_awake = False
                elif event & (select.POLLIN | _HANG_UP):
                    self._reader.read()

    def _update_interest(self) -> None:
        with self._interest_lock:
            if self._has_ended:
                return
            interest = select.POLLOUT if self._wants_write else 0
            if not (
                self._is_read_elsewhere or self._is_full(self._inbox.num_bytes, self._inbox.features_bytes)
            ):
                interest |= select.POLLIN
            if interest != self._interest:
                self._interest = interest
                self._poller.modify(self._socket, interest)

    def _is_full(self, num_bytes: int, features_bytes: int) -> bool:
        return num_bytes - features_bytes > self._limits.max_queued_bytes

    def _settle(self) -> None:
        """Give back to the peer what it has lent: credits, and memory."""
        self._reader.give_back()
        if self._writer.owes_credit:
            self._write_or_wake()

    def _write_or_wake(self) -> None:
        """Write now what the socket takes; the thread writes the rest, or all of it if it is writing already."""
        if self._writer.try_write():
            self._wake()

    def _wake(self) -> None:
        if self._is_awake:
            return
        self._is_awake = True
        with contextlib.suppress(OSError):
            self._wake_sender.send(b"\0")
