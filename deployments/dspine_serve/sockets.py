"""Where drafters listen on their node."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from pathlib import Path

_MIN_STALE_AGE_S = 60.0
"""A younger socket may belong to a process that is about to listen."""


def default_socket_folder() -> Path:
    """One folder per user among the temporary files."""
    return Path(tempfile.gettempdir()) / f"dspine-{os.geteuid()}"


def remove_stale_sockets(folder: Path) -> None:
    """Removes the sockets of processes that were killed: files at which nobody listens any more."""
    for path in folder.glob("*.sock"):
        try:
            if path.is_socket() and time.time() - path.lstat().st_mtime > _MIN_STALE_AGE_S:
                _remove_if_silent(path)
        except FileNotFoundError:  # another drafter was faster
            continue


def _remove_if_silent(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
        except OSError:
            return
