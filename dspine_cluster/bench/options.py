"""Options of the benchmarks: what cannot be used is refused before anything is measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any, TypeVar

import typer

from dspine_cluster.bench.picture import check_picture
from dspine_cluster.errors import ConfigError

Number = TypeVar("Number", int, float)


def choices(value: str, known: Sequence[str], option: str) -> list[str]:
    """The different names of a comma-separated list.

    Raises:
        typer.BadParameter: one is not known.
    """
    names = [name.strip() for name in value.split(",")]
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"{name!r} is not one of {', '.join(known)}", param_hint=option)
    return list(dict.fromkeys(names))


def numbers(value: str, kind: type[Number], option: str, *, most: float = inf) -> tuple[Number, ...]:
    """The numbers of a comma-separated list.

    Raises:
        typer.BadParameter: one is no number of the kind, not positive, not finite or above `most`.
    """
    try:
        found = tuple(kind(part) for part in value.split(","))
    except ValueError as error:
        raise typer.BadParameter(f"{value!r} is no list such as 1,8", param_hint=option) from error
    if not all(0 < number <= most and number < inf for number in found):
        limit = "" if most == inf else f" and at most {most:g}"
        raise typer.BadParameter(f"{value!r}: all must be positive{limit}", param_hint=option)
    return found


def _writable(path: Path | None) -> Path | None:
    if path is None:
        return None
    try:
        with path.open("ab") if path.exists() else TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise typer.BadParameter(f"cannot write {path}: {error.strerror}") from error
    return path


def _picture(path: Path | None) -> Path | None:
    if path is not None:
        check_picture(path)
    return _writable(path)


def write_report(report: Mapping[str, Any], path: Path | None) -> None:
    """Write a report where one is asked for.

    Raises:
        ConfigError: it cannot be written.
    """
    if path is None:
        return
    try:
        path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


JsonFile = Annotated[Path | None, typer.Option("--json", callback=_writable, help="Write the report here.")]
PictureFile = Annotated[Path | None, typer.Option("--plot", callback=_picture, help="Write a picture here.")]
