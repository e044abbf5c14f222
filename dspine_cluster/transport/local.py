"""A channel inside one process, with the credits and the end of a socket channel."""

from __future__ import annotations

from collections.abc import Callable

from dspine_cluster.errors import ChannelClosedError
from dspine_cluster.transport.channel import Channel, ChannelLimits
from dspine_cluster.transport.inbox import Inbox
from dspine_cluster.transport.messages import FEATURES, Hello, Message


class LocalChannel:
    """One end of a pair. Messages are handed over by reference: their arrays must not change after `send`."""

    def __init__(self, peer: Hello, inbox: Inbox, outbox: Inbox, limits: ChannelLimits) -> None:
        self._peer = peer
        self._inbox = inbox
        self._outbox = outbox
        self._limits = limits

    @property
    def peer(self) -> Hello:
        return self._peer

    @property
    def free_credit_bytes(self) -> int:
        return self._limits.credit_bytes - self._outbox.features_bytes

    def send(self, message: Message, *, bulk: bool = False) -> bool:
        if self._outbox.close_reason is not None:
            raise ChannelClosedError(self._outbox.close_reason)
        if isinstance(message, FEATURES) and message.num_bytes > self.free_credit_bytes:
            return False
        self._outbox.put([message], 0)
        return True

    def receive(self) -> list[Message]:
        return self._inbox.take()[0]

    def set_ready_callback(self, callback: Callable[[], None]) -> None:
        self._inbox.set_callback(callback)

    def close(self) -> None:
        self._inbox.close("this side closed the channel")
        self._outbox.close("the peer closed the channel")


def pair(first: Hello, second: Hello, limits: ChannelLimits | None = None) -> tuple[Channel, Channel]:
    """Two connected channels: of the side which says `first`, and of the side which says `second`."""
    limits = limits or ChannelLimits()
    to_first, to_second = Inbox(), Inbox()
    return LocalChannel(second, to_first, to_second, limits), LocalChannel(first, to_second, to_first, limits)
