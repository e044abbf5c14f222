"""Rounds as they cross a handle: bytes, which Serve passes on several times faster than objects."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from time import monotonic

import msgspec

from dspine_cluster.types import RoundOutput

_ITEM_CPU_S = 0.002
"""What an item costs the processes that it goes through, together; a replica's streams may take all CPUs with that."""
_MAX_ITEMS_PER_S = 4000.0
"""One process passes on no more."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[RoundOutput])


def pack_rounds(outputs: Sequence[RoundOutput]) -> bytes:
    """One item of a stream: what one or more rounds gave."""
    return _encoder.encode(outputs)


def unpack_rounds(item: bytes) -> list[RoundOutput]:
    """The inverse of `pack_rounds`."""
    return _decoder.decode(item)


class ItemPacer:
    """Keeps the items of a replica's streams few: Serve takes every one that it is given, and falls behind where these
    are too many. The more streams there are, the more rounds go together in one item; with one stream none do.
    """

    def __init__(self, num_cpus: int | None = None) -> None:
        """For a machine of `num_cpus`, or this one."""
        num_cpus = num_cpus or os.cpu_count() or 1
        self._item_s = max(_ITEM_CPU_S / num_cpus, 1.0 / _MAX_ITEMS_PER_S)
        self._num_streams = 0

    async def items(self, batches: AsyncIterator[list[RoundOutput]]) -> AsyncGenerator[bytes, None]:
        """The items of one stream; the first one goes at once."""
        self._num_streams += 1
        try:
            async for outputs in batches:
                next_at_s = monotonic() + self._item_s * self._num_streams
                yield pack_rounds(outputs)
                if (pause_s := next_at_s - monotonic()) > 0.0 and self._num_streams > 1:
                    await asyncio.sleep(pause_s)
        finally:
            self._num_streams -= 1
