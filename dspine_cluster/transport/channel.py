"""The channel between a verifier and a drafter, whatever carries it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from dspine_cluster.transport.messages import Hello, Message


@dataclass(frozen=True)
class ChannelLimits:
    """What one side of a channel lets the other side do, checked before memory is given."""

    credit_bytes: int = 32 << 20
    """`Features`, or a `FeatureBatch`, that may be under way or unread at once, in bytes of rows."""
    fragment_bytes: int = 256 << 10
    """Larger `Features` are split by rows, so that a round waits for at most one fragment."""
    max_header_bytes: int = (512 << 10) + (4 << 10)
    max_payload_bytes: int = 32 << 20
    max_queued_bytes: int = 64 << 20
    """Messages other than `Features` that wait. Beyond it the receiving side stops reading until `receive` is
    called, and the sending side closes the channel: its peer has stopped reading."""
    shared_bytes: int = 8 << 20
    """Of the memory through which the features of rounds go to a peer on the same node, and the most that a peer may
    ask to be mapped. 0 leaves everything to the socket."""
    handshake_timeout_s: float = 5.0


class Channel(Protocol):
    """One ordered, authenticated connection. No method blocks. `send` and `receive` may run in different
    threads, each in one thread at a time."""

    @property
    def peer(self) -> Hello:
        """What the other side said of itself."""

    @property
    def free_credit_bytes(self) -> int:
        """Bytes of `Features` rows that `send` would take now."""

    def send(self, message: Message, *, bulk: bool = False) -> bool:
        """Queue a message; the arrays in it must not change afterwards.

        Messages keep their order, except that everything else overtakes `Features` sent with `bulk=True`
        (prompts and repairs). The features a draft needs go without `bulk`, just before that draft; a `FeatureBatch`
        may wait for the next message, and leave with it.

        Returns:
            False for `Features` that exceed `free_credit_bytes`: nothing was sent, try again next round. How many
            credits there are is the peer's choice: those that exceed them all are never sent.

        Raises:
            ChannelClosedError: either side has closed.
            ValueError: the message exceeds a limit, so that it could never be sent.
        """

    def receive(self) -> list[Message]:
        """Everything that has arrived, in order; possibly nothing. The sender gets its credits back, where a `Waiter`
        watches the channel with the next message or when that waits.

        Rows of features may lie in memory shared with the sender, who gets it back when nothing refers to them.

        Raises:
            ChannelClosedError: the channel is closed and all that arrived before has been received.
        """

    def set_ready_callback(self, callback: Callable[[], None]) -> None:
        """Have `callback` called whenever `receive` would give something, a message or the end.

        It is called at once if that is already so, later from any thread, and must not block.
        """

    def close(self) -> None:
        """Close both directions now; what is still queued is lost. Harmless when already closed."""
