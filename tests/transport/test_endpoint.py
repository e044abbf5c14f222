"""Endpoints: what they look like, and how sockets are opened at them."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.errors import ChannelError, ConfigError
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

names = st.text("abcdefghij-._", min_size=1, max_size=20)
endpoints: st.SearchStrategy[Endpoint] = st.one_of(
    names.map(lambda name: UnixEndpoint("/" + name)),
    st.builds(TcpEndpoint, names | st.just("::1"), st.integers(0, 65535)),
)


@given(endpoints)
def test_an_endpoint_is_read_back_from_its_text(endpoint: Endpoint) -> None:
    assert parse_endpoint(str(endpoint)) == endpoint


@pytest.mark.parametrize(
    "text",
    [
        "",
        "unix:",
        "unix:relative",
        "tcp:host",
        "tcp::1",
        "tcp:host:x",
        "tcp:host:65536",
        "udp:host:1",
        "/path",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="endpoint must be"):
        parse_endpoint(text)


def test_a_path_of_100_bytes_is_refused_and_99_are_not() -> None:
    parse_endpoint("unix:/" + "x" * 98)
    with pytest.raises(ConfigError, match="shorter than 100 bytes"):
        parse_endpoint("unix:/" + "x" * 99)
    with pytest.raises(ConfigError, match="shorter than 100 bytes"):
        parse_endpoint("unix:/" + "é" * 50)


def test_the_folder_of_a_socket_is_made_closed_to_others(folder: Path) -> None:
    listening, endpoint = open_listening(UnixEndpoint(str(folder / "new" / "s")))
    with listening:
        assert (folder / "new").stat().st_mode & 0o777 == 0o700
    remove_socket_file(endpoint)
    assert not (folder / "new" / "s").exists()


def test_a_folder_open_to_others_is_refused(folder: Path) -> None:
    folder.chmod(0o755)
    with pytest.raises(ChannelError, match="chmod 700"):
        open_listening(UnixEndpoint(str(folder / "s")))


def test_a_socket_that_nobody_listens_at_is_replaced(folder: Path) -> None:
    endpoint = UnixEndpoint(str(folder / "s"))
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(endpoint.path)
    listening, _ = open_listening(endpoint)
    with listening, open_connected(endpoint, 1.0):
        pass


def test_a_socket_that_is_listened_at_is_not_taken(folder: Path) -> None:
    endpoint = UnixEndpoint(str(folder / "s"))
    with open_listening(endpoint)[0], pytest.raises(ChannelError, match="another process"):
        open_listening(endpoint)


def test_a_file_is_not_replaced(folder: Path) -> None:
    (folder / "s").write_text("precious")
    with pytest.raises(ChannelError, match="not a socket"):
        open_listening(UnixEndpoint(str(folder / "s")))
    assert (folder / "s").read_text() == "precious"


def test_connecting_where_nobody_listens_names_the_endpoint(folder: Path) -> None:
    with pytest.raises(ChannelError, match=f"cannot connect to unix:{folder}"):
        open_connected(UnixEndpoint(str(folder / "s")), 1.0)
    free, endpoint = open_listening(TcpEndpoint("127.0.0.1", 0))
    free.close()
    with pytest.raises(ChannelError, match=r"cannot connect to tcp:127\.0\.0\.1"):
        open_connected(endpoint, 1.0)


def test_a_tcp_listener_tells_its_port_and_its_sockets_have_no_delay_and_keepalive() -> None:
    listening, endpoint = open_listening(TcpEndpoint("127.0.0.1", 0))
    assert isinstance(endpoint, TcpEndpoint)
    assert endpoint.port > 0
    with listening, open_connected(endpoint, 1.0) as connected:
        tune(connected)
        assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_a_taken_port_is_a_channel_error() -> None:
    listening, endpoint = open_listening(TcpEndpoint("127.0.0.1", 0))
    with listening, pytest.raises(ChannelError, match="cannot listen"):
        open_listening(endpoint)


def test_removing_a_socket_file_twice_is_harmless(folder: Path) -> None:
    endpoint = UnixEndpoint(str(folder / "s"))
    open_listening(endpoint)[0].close()
    remove_socket_file(endpoint)
    remove_socket_file(endpoint)
    assert os.listdir(folder) == []
