"""Where a channel can be reached: a path on this node, or a host and port."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from dspine_cluster.errors import ChannelError, ConfigError

MAX_UNIX_PATH_BYTES = 99
_PROBE_TIMEOUT_S = 1.0
_SEND_BUFFER_BYTES = 512 << 10
_UNSENT_BYTES = 128 << 10
"""TCP bytes in the kernel that are not yet on their way: a round queues behind no more than these."""


@dataclass(frozen=True)
class UnixEndpoint:
    """A Unix socket; both ends are on one node and may see its folder."""

    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"


@dataclass(frozen=True)
class TcpEndpoint:
    """A host and port; port 0 lets a listener choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"tcp:[{self.host}]:{self.port}" if ":" in self.host else f"tcp:{self.host}:{self.port}"


Endpoint = UnixEndpoint | TcpEndpoint


def parse_endpoint(text: str) -> Endpoint:
    """The endpoint that `unix:/absolute/path` or `tcp:host:port` names (IPv6 hosts in brackets).

    Raises:
        ConfigError: the text has another form, or the path is too long for a socket.
    """
    kind, _, rest = text.partition(":")
    if kind == "unix" and rest.startswith("/"):
        if len(os.fsencode(rest)) > MAX_UNIX_PATH_BYTES:
            raise ConfigError(f"a socket's path must be shorter than 100 bytes, use a shorter folder: {rest}")
        return UnixEndpoint(rest)
    if kind == "tcp":
        host, _, port = rest.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if host and port.isdecimal() and int(port) < 1 << 16:
            return TcpEndpoint(host, int(port))
    raise ConfigError(f"an endpoint must be unix:/absolute/path or tcp:host:port, not {text!r}")


def open_listening(endpoint: Endpoint) -> tuple[socket.socket, Endpoint]:
    """A socket that listens at `endpoint`, and the endpoint with the port that it got.

    A Unix socket's folder is made with mode 0700 if need be; a socket that nobody listens at is replaced.

    Raises:
        ChannelError: the address is taken or not allowed, or the folder is open to other users.
    """
    try:
        if isinstance(endpoint, TcpEndpoint):
            family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
            listening = socket.create_server((endpoint.host, endpoint.port), family=family, backlog=128)
            return listening, TcpEndpoint(endpoint.host, listening.getsockname()[1])
        _prepare_path(Path(endpoint.path))
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(endpoint.path)
            listening.listen(128)
        except OSError:
            listening.close()
            raise
        return listening, endpoint
    except OSError as error:
        raise ChannelError(f"cannot listen at {endpoint}: {error}") from error


def open_connected(endpoint: Endpoint, timeout_s: float) -> socket.socket:
    """A socket connected to `endpoint`.

    Raises:
        ChannelError: nobody listens there, or not within `timeout_s`.
    """
    try:
        if isinstance(endpoint, TcpEndpoint):
            return socket.create_connection((endpoint.host, endpoint.port), timeout=timeout_s)
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connected.settimeout(timeout_s)
            connected.connect(endpoint.path)
        except OSError:
            connected.close()
            raise
        return connected
    except OSError as error:
        raise ChannelError(f"cannot connect to {endpoint}: {error}") from error


def tune(connected: socket.socket) -> None:
    """Set what a channel wants of its socket: no delay, short kernel queues, dead peers noticed in 15 s."""
    if connected.family == socket.AF_UNIX:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        return
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    linux_options = {
        "TCP_NOTSENT_LOWAT": _UNSENT_BYTES,
        "TCP_KEEPIDLE": 5,
        "TCP_KEEPINTVL": 2,
        "TCP_KEEPCNT": 5,
        "TCP_USER_TIMEOUT": 15_000,
    }
    for name, value in linux_options.items():
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def remove_socket_file(endpoint: Endpoint) -> None:
    """Remove the file of a Unix socket that this process listened at."""
    if isinstance(endpoint, UnixEndpoint):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(endpoint.path)


def remove_dead_socket(path: Path) -> bool:
    """Remove the file of a Unix socket at which nobody listens any more; False if somebody does.

    Raises:
        OSError: that cannot be told.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return True
    return False


def _prepare_path(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = path.parent.stat()
    if folder.st_uid != os.geteuid() or folder.st_mode & 0o077:
        raise ChannelError(
            f"the folder of a socket must be yours and closed to others (chmod 700): {path.parent}"
        )
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ChannelError(f"cannot listen at {path}: the path is taken by something that is not a socket")
    if not remove_dead_socket(path):
        raise ChannelError(f"cannot listen at {path}: another process does")
