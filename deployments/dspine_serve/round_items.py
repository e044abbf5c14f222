"""Rounds as they cross a handle: bytes, which Serve passes on several times faster than objects."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from time import monotonic

import msgspec

from dspine_cluster.types import RoundOutput

_ITEM_CPU_S = 0.001
"""What an item costs the processes that it goes through, together."""
_CPU_SHARE = 0.2
"""Of a machine, that items may take; the rest is for models, and for what each event costs by itself."""
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
    are too many. While there are fewer, every round is an item at once; beyond that streams take turns, and the rounds
    that a stream has meanwhile go together in its next item. A stream alone never waits.
    """

    def __init__(self, num_cpus: int | None = None) -> None:
        """For a machine of `num_cpus`, or this one."""
        num_cpus = num_cpus or os.cpu_count() or 1
        self._item_s = max(_ITEM_CPU_S / (_CPU_SHARE * num_cpus), 1.0 / _MAX_ITEMS_PER_S)
        self._num_streams = 0
        self._next_turn_s = 0.0

    async def items(self, batches: AsyncIterator[list[RoundOutput]]) -> AsyncGenerator[bytes, None]:
        """The items of one stream; the first one goes at once."""
        self._num_streams += 1
        try:
            async for outputs in batches:
                turn_s = self._take_turn()
                yield pack_rounds(outputs)
                if (pause_s := turn_s - monotonic()) > 0.0 and self._num_streams > 1:
                    await asyncio.sleep(pause_s)
        finally:
            self._num_streams -= 1

    def _take_turn(self) -> float:
        """When the present stream may send its next item. One turn of each stream is kept while it is not taken: a pass
        gives all of them a round at the same time."""
        oldest_s = monotonic() - self._item_s * self._num_streams
        self._next_turn_s = max(self._next_turn_s, oldest_s) + self._item_s
        return self._next_turn_s
