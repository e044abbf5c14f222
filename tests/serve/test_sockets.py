from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from dspine_serve.sockets import default_socket_folder, remove_stale_sockets


def make_socket(path: Path, *, age_s: float, is_alive: bool = False) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(str(path))
    if is_alive:
        listening.listen()
    made_at_s = time.time() - age_s
    os.utime(path, (made_at_s, made_at_s))
    return listening


def test_only_old_sockets_without_a_listener_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path()
    sockets = [
        make_socket(folder / "dead.sock", age_s=100),
        make_socket(folder / "alive.sock", age_s=100, is_alive=True),
        make_socket(folder / "young.sock", age_s=0),
    ]
    (folder / "file.sock").touch()
    remove_stale_sockets(folder)
    assert {path.name for path in folder.iterdir()} == {"alive.sock", "young.sock", "file.sock"}
    for listening in sockets:
        listening.close()


def test_a_folder_that_is_not_there_yet_is_clean(tmp_path: Path) -> None:
    remove_stale_sockets(tmp_path / "none")


def test_each_user_has_a_folder_of_its_own() -> None:
    assert str(os.geteuid()) in default_socket_folder().name
