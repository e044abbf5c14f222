"""Files and folders that are whole or not there: written beside and renamed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from dspine_cluster.errors import CheckpointError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write a file or fill a folder, which takes the place of `path` once the block has ended well.

    Raises:
        CheckpointError: it cannot be written.
    """
    beside = path.with_name(f"{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove(beside)
        try:
            yield beside
            if path.is_dir():
                _remove(path)
            os.replace(beside, path)
        finally:
            _remove(beside)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot write {path}: {error}") from error


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
