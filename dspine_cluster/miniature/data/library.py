"""Text that every Python installation carries: the standard library's sources and its reference topics."""

from __future__ import annotations

import re
import sysconfig
import zlib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random

from dspine_cluster.miniature.data.conversation import Split

_LEFT_OUT = frozenset(
    {"site-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "pydoc_data", "encodings"}
)
_HELD_OUT_PERCENT = 8


@cache
def source_files(split: Split) -> tuple[Path, ...]:
    """Modules of the standard library, tests and data tables left out; a fixed share of the files is held out."""
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted(p for p in root.rglob("*.py") if not _LEFT_OUT.intersection(p.relative_to(root).parts))
    return tuple(p for p in files if _split_of(str(p.relative_to(root))) is split)


def source_excerpt(rng: Random, files: Sequence[Path], *, max_characters: int = 1800) -> str:
    """Consecutive lines of one file, from a random line on."""
    text = rng.choice(files).read_text(encoding="utf-8", errors="ignore")
    lines = text.splitlines(keepends=True)
    start = rng.randrange(max(1, len(lines) - 20))
    return "".join(_until(lines[start:], max_characters))


def topics(split: Split) -> list[str]:
    """The language reference's topics that ship with `pydoc`."""
    from pydoc_data.topics import topics as by_name  # type: ignore[import-not-found, unused-ignore]

    return [text for name, text in sorted(by_name.items()) if _split_of(name) is split]


@cache
def vocabulary(split: Split) -> tuple[str, ...]:
    """Every word of the topics, once."""
    return tuple(sorted({word for text in topics(split) for word in re.findall(r"[A-Za-z_]{2,12}", text)}))


def topic_excerpt(rng: Random, texts: list[str], *, max_characters: int = 1500) -> str:
    """Consecutive paragraphs of one topic."""
    paragraphs = [p + "\n\n" for p in rng.choice(texts).split("\n\n")]
    start = rng.randrange(max(1, len(paragraphs) - 3))
    return "".join(_until(paragraphs[start:], max_characters))


def _split_of(name: str) -> Split:
    return Split.HELD_OUT if zlib.crc32(name.encode()) % 100 < _HELD_OUT_PERCENT else Split.TRAIN


def _until(parts: list[str], max_characters: int) -> Iterator[str]:
    used = 0
    for part in parts:
        used += len(part)
        if used > max_characters:
            return
        yield part
