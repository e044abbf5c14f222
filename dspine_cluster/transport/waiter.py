"""What a loop waits with: its channels, whose sockets it then reads itself, and whatever else there is to do."""

from __future__ import annotations

import contextlib
import os
import select
import time
import weakref

from dspine_cluster.transport.channel import Channel
from dspine_cluster.transport.socket_channel import SocketChannel


class Waiter:
    """An event for one waiting thread, which reads the channels that it watches while it waits: what comes over a
    socket wakes that thread and no other. While it does something else, the channels' own threads read."""

    def __init__(self) -> None:
        self._is_set = False
        self._is_waiting = False
        self._channels: dict[int, SocketChannel] = {}  # by the file that is polled
        self._wake_receiver, self._wake_sender = os.pipe()
        for file in (self._wake_receiver, self._wake_sender):
            os.set_blocking(file, False)
            weakref.finalize(self, os.close, file)
        self._poller = select.poll()
        self._poller.register(self._wake_receiver, select.POLLIN)

    def watch(self, channel: Channel) -> None:
        """Be set whenever the channel has something to receive. Any thread may call it."""
        channel.set_ready_callback(self.set)
        if isinstance(channel, SocketChannel) and channel.can_be_read_elsewhere:
            file = channel.fileno()
            if file >= 0:
                channel.is_watched = True
                self._channels[file] = channel
                self._poller.register(file, select.POLLIN)
        self.set()

    def set(self) -> None:
        """Let `wait` return, now or when it is called next. Any thread may call it."""
        self._is_set = True
        if self._is_waiting:
            with contextlib.suppress(BlockingIOError):
                os.write(self._wake_sender, b"\0")

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout_s: float) -> bool:
        """Wait until `set` has been called since `clear`. Returns False if that took `timeout_s`, to which up to a
        millisecond is added."""
        if self._is_set:
            return True
        channels = list(self._channels.values())
        for channel in channels:
            channel.read_elsewhere(True)
        deadline_s = time.monotonic() + timeout_s
        while self._poll(deadline_s - time.monotonic()):
            pass
        for channel in channels:
            channel.read_elsewhere(False)
        return self._is_set

    def _poll(self, timeout_s: float) -> bool:
        """Read what comes first. Returns whether to go on: neither is anything set, nor was it too late."""
        self._is_waiting = True  # before looking, so that who sets it from now on wakes the poll
        ready = [] if self._is_set else self._poller.poll(1000 * max(0.0, timeout_s))
        self._is_waiting = False
        for file, _ in ready:
            if file == self._wake_receiver:
                os.read(file, 4096)
            elif not self._channels[file].read():
                self._poller.unregister(file)
                del self._channels[file]
        return bool(ready) and not self._is_set
