"""One line of progress at a time, into a file beside the checkpoint."""

from __future__ import annotations

from pathlib import Path


def log(folder: Path, line: str) -> None:
    """Append `line` to `folder/log.txt`."""
    with (folder / "log.txt").open("a", encoding="utf-8") as file:
        file.write(line + "\n")
