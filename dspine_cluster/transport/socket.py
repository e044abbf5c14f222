"""Channels between processes: listen at an endpoint, or connect to one."""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import threading
import time
from collections.abc import Callable

from dspine_cluster.errors import ChannelError
from dspine_cluster.transport.channel import Channel, ChannelLimits
from dspine_cluster.transport.endpoint import (
    Endpoint,
    TcpEndpoint,
    UnixEndpoint,
    open_connected,
    open_listening,
    parse_endpoint,
    remove_socket_file,
    tune,
)
from dspine_cluster.transport.handshake import check_secret, shake_hands
from dspine_cluster.transport.messages import Hello
from dspine_cluster.transport.shared_ring import receive_ring, send_ring
from dspine_cluster.transport.socket_channel import SocketChannel

__all__ = ["Endpoint", "Listener", "TcpEndpoint", "UnixEndpoint", "connect", "parse_endpoint"]

logger = logging.getLogger(__name__)

_MAX_HANDSHAKES = 64
"""Connections that have not proved themselves yet; more are hung up at once."""
_ACCEPT_PAUSE_S = 0.1


def connect(
    endpoint: Endpoint, hello: Hello, secret: bytes, timeout_s: float, limits: ChannelLimits | None = None
) -> Channel:
    """A channel to whoever listens at `endpoint`; blocks for at most `timeout_s`, handshake included.

    Raises:
        ChannelError: nobody listens there, or the handshake failed.
        ConfigError: the secret is too short.
    """
    check_secret(secret)
    limits = limits or ChannelLimits()
    deadline = time.monotonic() + timeout_s
    connected = open_connected(endpoint, timeout_s)
    try:
        tune(connected)
        remaining_s = deadline - time.monotonic()
        peer = shake_hands(connected, hello, secret, limits, is_listener=False, timeout_s=remaining_s)
        is_near = connected.family == socket.AF_UNIX
        ring = send_ring(connected, limits.shared_bytes) if is_near else None
    except (ChannelError, OSError) as error:
        connected.close()
        raise ChannelError(f"cannot open a channel to {endpoint}: {error}") from error
    channel = SocketChannel(connected, peer, limits, ring)
    channel.start()
    return channel


class Listener:
    """Accepts channels at an endpoint until closed. A peer that misbehaves costs only its own connection."""

    def __init__(
        self,
        endpoint: Endpoint,
        hello: Hello,
        secret: bytes,
        on_channel: Callable[[Channel], None],
        limits: ChannelLimits | None = None,
    ) -> None:
        """Start to listen. `on_channel` gets every channel that has passed the handshake, in that channel's thread;
        the channel delivers messages only after it has returned.

        Raises:
            ChannelError: the endpoint is taken or not allowed.
            ConfigError: the secret is too short.
        """
        check_secret(secret)
        self._hello = hello
        self._secret = secret
        self._on_channel = on_channel
        self._limits = limits or ChannelLimits()
        self._lock = threading.Lock()
        self._is_closed = False
        self._shaking: set[socket.socket] = set()
        self._listening, self.endpoint = open_listening(endpoint)
        self._listening.setblocking(False)
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._thread = threading.Thread(target=self._accept, name="listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop accepting and hang up on unfinished handshakes; open channels stay open. Harmless when closed."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            for connected in self._shaking:
                with contextlib.suppress(OSError):
                    connected.shutdown(socket.SHUT_RDWR)
        self._wake_sender.send(b"\0")
        self._thread.join()
        self._listening.close()
        self._wake_sender.close()
        self._wake_receiver.close()
        remove_socket_file(self.endpoint)

    def _accept(self) -> None:
        poller = select.poll()
        poller.register(self._listening, select.POLLIN)
        poller.register(self._wake_receiver, select.POLLIN)
        while True:
            poller.poll()
            if self._is_closed:
                return
            try:
                connected, _ = self._listening.accept()
            except (BlockingIOError, ConnectionError):
                continue
            except OSError:
                logger.exception("cannot accept a channel at %s", self.endpoint)
                time.sleep(_ACCEPT_PAUSE_S)
                continue
            self._admit(connected)

    def _admit(self, connected: socket.socket) -> None:
        with self._lock:
            if self._is_closed or len(self._shaking) >= _MAX_HANDSHAKES:
                connected.close()
                return
            self._shaking.add(connected)
        threading.Thread(target=self._serve, args=(connected,), name="channel", daemon=True).start()

    def _serve(self, connected: socket.socket) -> None:
        try:
            tune(connected)
            timeout_s = self._limits.handshake_timeout_s
            peer = shake_hands(
                connected, self._hello, self._secret, self._limits, is_listener=True, timeout_s=timeout_s
            )
            is_near = connected.family == socket.AF_UNIX
            ring = receive_ring(connected, self._limits.shared_bytes) if is_near else None
        except (ChannelError, OSError) as error:
            logger.warning("refused a channel at %s: %s", self.endpoint, error)
            connected.close()
            return
        finally:
            with self._lock:
                self._shaking.discard(connected)
        channel = SocketChannel(connected, peer, self._limits, ring)
        try:
            self._on_channel(channel)
        except Exception:
            logger.exception("a new channel at %s was not taken", self.endpoint)
            channel.close()
        channel.run()
