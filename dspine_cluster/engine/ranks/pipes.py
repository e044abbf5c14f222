"""Messages between the ranks' processes: a tag, a length, and that many bytes."""

from __future__ import annotations

import struct
from enum import Enum
from typing import IO

_HEADER = struct.Struct("<cQ")


class Tag(bytes, Enum):
    """What a message holds."""

    LOAD = b"L"
    """JSON: which part of which target."""
    POOLS = b"P"
    """JSON: the sizes of the engine's pools."""
    WARM_UP = b"W"
    """Nothing: record passes."""
    STEP = b"S"
    """`encode_step`."""
    DONE = b"D"
    """Nothing: the answer to the first two."""
    FAILED = b"F"
    """UTF-8: the answer that tells why not."""


def write_message(stream: IO[bytes], tag: Tag, content: bytes = b"") -> None:
    """
    Raises:
        BrokenPipeError: nobody reads any more.
    """
    stream.write(_HEADER.pack(tag.value, len(content)) + content)
    stream.flush()


def read_message(stream: IO[bytes]) -> tuple[Tag, bytes] | None:
    """The next message; None at the stream's end, wherever that is."""
    header = stream.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    tag, length = _HEADER.unpack(header)
    content = stream.read(length)
    return (Tag(tag), content) if len(content) == length else None
