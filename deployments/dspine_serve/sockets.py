"""Where drafters listen on their node."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from dspine_cluster.transport.endpoint import remove_dead_socket

_MIN_STALE_AGE_S = 60.0
"""A younger socket may belong to a process that is about to listen."""


def default_socket_folder() -> Path:
    """One folder per user among the temporary files."""
    return Path(tempfile.gettempdir()) / f"dspine-{os.geteuid()}"


def remove_stale_sockets(folder: Path) -> None:
    """Removes the sockets of processes that were killed: files at which nobody listens any more."""
    for path in folder.glob("*.sock"):
        with suppress(OSError):  # another drafter was faster, or the socket is another user's
            if path.is_socket() and time.time() - path.lstat().st_mtime > _MIN_STALE_AGE_S:
                remove_dead_socket(path)
