"""The receiving half of a channel: messages that wait to be received, and the end that follows them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dspine_cluster.errors import ChannelClosedError
from dspine_cluster.transport.messages import FEATURES, Message


class Inbox:
    """Thread-safe queue of arrived messages with one callback for "there is something"."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._messages: list[Message] = []
        self._bytes = 0
        self._features_bytes = 0
        self._close_reason: str | None = None
        self._callback: Callable[[], None] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits, not even the end."""
        return not self._messages and self._close_reason is None

    @property
    def features_bytes(self) -> int:
        """Bytes of rows of the `Features` that wait."""
        return self._features_bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of everything that waits, as told to `put`."""
        return self._bytes

    @property
    def close_reason(self) -> str | None:
        return self._close_reason

    def put(self, messages: list[Message], num_bytes: int) -> None:
        """Append messages that take `num_bytes` together; ignored once closed."""
        with self._lock:
            if self._close_reason is not None:
                return
            self._messages += messages
            self._bytes += num_bytes
            self._features_bytes += sum(m.num_bytes for m in messages if isinstance(m, FEATURES))
            callback = self._callback
        if callback is not None:
            callback()

    def take(self) -> tuple[list[Message], int, int]:
        """All waiting messages in order, their bytes, and the bytes of `Features` rows in them.

        The callback is called again if the end follows these messages: it is all that waits now.

        Raises:
            ChannelClosedError: closed, and nothing waits.
        """
        with self._lock:
            if not self._messages and self._close_reason is not None:
                raise ChannelClosedError(self._close_reason)
            messages, self._messages = self._messages, []
            num_bytes, self._bytes = self._bytes, 0
            features_bytes, self._features_bytes = self._features_bytes, 0
            callback = self._callback if self._close_reason is not None else None
        if callback is not None:
            callback()
        return messages, num_bytes, features_bytes

    def close(self, reason: str) -> bool:
        """End the queue; what waits can still be taken. Returns False if it had ended before."""
        with self._lock:
            if self._close_reason is not None:
                return False
            self._close_reason = reason
            callback = self._callback
        if callback is not None:
            callback()
        return True

    def set_callback(self, callback: Callable[[], None]) -> None:
        with self._lock:
            self._callback = callback
            is_ready = bool(self._messages) or self._close_reason is not None
        if is_ready:
            callback()
