"""How two sides of a socket prove that they share the application's secret, then say who they are.

Each side sends its protocol version and a nonce; the connecting side proves itself first, over both nonces;
nothing is parsed before. This keeps out strangers and other applications; it does not encrypt.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import struct
import time
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from dspine_cluster.errors import ChannelError, ConfigError
from dspine_cluster.transport.channel import ChannelLimits
from dspine_cluster.transport.messages import Hello

_NONCE_BYTES = 32
_OPENING = struct.Struct(f"<6sH{_NONCE_BYTES}s")
"""Magic, protocol version, nonce."""
_MAGIC = b"dspine"
_LENGTH = struct.Struct("<I")
_MAX_GREETING_BYTES = 8192
MIN_SECRET_BYTES = 16


class Peer(Struct, frozen=True, forbid_unknown_fields=True):
    """The greeting that ends the handshake: what one side learns of the other."""

    hello: Hello
    credit_bytes: Annotated[int, Meta(ge=0)]
    """`Features` that it takes unread, in bytes of rows."""


def check_secret(secret: bytes) -> None:
    """Raises ConfigError if the secret is too short to be one."""
    if len(secret) < MIN_SECRET_BYTES:
        raise ConfigError(f"secret must have at least {MIN_SECRET_BYTES} bytes")


def shake_hands(
    sock: socket.socket,
    hello: Hello,
    secret: bytes,
    limits: ChannelLimits,
    *,
    is_listener: bool,
    timeout_s: float,
) -> Peer:
    """Authenticate both sides and exchange greetings within `timeout_s`; changes the socket's timeout.

    Raises:
        ChannelError: another secret or protocol version, garbage, silence, or the peer has gone.
    """
    deadline = time.monotonic() + timeout_s
    try:
        _authenticate(sock, hello.protocol, secret, deadline, is_listener=is_listener)
        return _exchange_greetings(sock, hello, limits, deadline)
    except TimeoutError as error:
        raise ChannelError(f"the peer did not finish the handshake within {timeout_s} s") from error
    except OSError as error:
        raise ChannelError(f"the connection broke during the handshake: {error}") from error


def _authenticate(
    sock: socket.socket, protocol: int, secret: bytes, deadline: float, *, is_listener: bool
) -> None:
    own_nonce = secrets.token_bytes(_NONCE_BYTES)
    _send(sock, _OPENING.pack(_MAGIC, protocol, own_nonce), deadline)
    magic, peer_protocol, peer_nonce = _OPENING.unpack(_receive(sock, _OPENING.size, deadline))
    if magic != _MAGIC:
        raise ChannelError("the peer does not speak this protocol")
    if peer_protocol != protocol:
        raise ChannelError(
            f"the peer speaks protocol {peer_protocol}, this side {protocol}: update the older one"
        )
    connector_nonce, listener_nonce = (peer_nonce, own_nonce) if is_listener else (own_nonce, peer_nonce)
    nonces = connector_nonce + listener_nonce
    connector_proof = hmac.digest(secret, b"connector" + nonces, hashlib.sha256)
    listener_proof = hmac.digest(secret, b"listener" + nonces, hashlib.sha256)
    if is_listener:
        _check_proof(_receive(sock, len(connector_proof), deadline), connector_proof)
        _send(sock, listener_proof, deadline)
    else:
        _send(sock, connector_proof, deadline)
        _check_proof(_receive(sock, len(listener_proof), deadline), listener_proof)


def _check_proof(given: bytes, expected: bytes) -> None:
    if not hmac.compare_digest(given, expected):
        raise ChannelError("the peer does not know this application's secret")


def _exchange_greetings(sock: socket.socket, hello: Hello, limits: ChannelLimits, deadline: float) -> Peer:
    greeting = msgspec.msgpack.encode(Peer(hello, limits.credit_bytes))
    _send(sock, _LENGTH.pack(len(greeting)) + greeting, deadline)
    (num_bytes,) = _LENGTH.unpack(_receive(sock, _LENGTH.size, deadline))
    if num_bytes > _MAX_GREETING_BYTES:
        raise ChannelError(f"the peer's greeting of {num_bytes} bytes exceeds the limit")
    try:
        return msgspec.msgpack.decode(_receive(sock, num_bytes, deadline), type=Peer)
    except (ValueError, RecursionError) as error:
        raise ChannelError(f"the peer sent a malformed greeting: {error}") from error


def _send(sock: socket.socket, data: bytes, deadline: float) -> None:
    sock.settimeout(_remaining_s(deadline))
    sock.sendall(data)


def _receive(sock: socket.socket, num_bytes: int, deadline: float) -> bytes:
    data = bytearray(num_bytes)
    view = memoryview(data)
    while view:
        view = view[_receive_into(sock, view, deadline) :]
    return bytes(data)


def _receive_into(sock: socket.socket, view: memoryview, deadline: float) -> int:
    sock.settimeout(_remaining_s(deadline))
    num_bytes = sock.recv_into(view)
    if num_bytes == 0:
        raise ChannelError("the peer hung up during the handshake; it may have another secret")
    return num_bytes


def _remaining_s(deadline: float) -> float:
    remaining_s = deadline - time.monotonic()
    if remaining_s <= 0.0:
        raise TimeoutError
    return remaining_s
