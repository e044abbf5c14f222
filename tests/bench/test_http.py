from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import pytest

from dspine_cluster.bench.http import Streamed, StreamError, StreamTarget, compare, events_per_s, read_stream

EVENT = b'data: {"a": "{}"}\n\n'
DONE = b"data: [DONE]\n\n"


@asynccontextmanager
async def server(pieces: Sequence[bytes], status: bytes = b"200 OK") -> AsyncIterator[StreamTarget]:
    """Sends every piece by itself."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        num_open.append(1)
        await reader.readuntil(b"\r\n\r\n{}")
        writer.write(b"HTTP/1.1 " + status + b"\r\n\r\n")
        for piece in pieces:
            await writer.drain()
            await asyncio.sleep(0.001)
            writer.write(piece)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        num_open.pop()

    num_open: list[int] = []
    listening = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with listening:
        yield StreamTarget(listening.sockets[0].getsockname()[1], "/x", {})
        while num_open:
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("size", [1, 3, 7, 19, 100])
async def test_events_are_counted_once_wherever_the_answer_is_split(size: int) -> None:
    whole = b"\n" + 5 * EVENT + b": keep-alive\n\n" + 4 * EVENT + DONE
    async with server([whole[start : start + size] for start in range(0, len(whole), size)]) as target:
        streamed = Streamed()
        await read_stream(target, streamed)
    assert streamed.num_events == 9
    assert streamed.first_byte_s > 0


@pytest.mark.parametrize(
    ("pieces", "status"), [([b"\n" + EVENT], b"200 OK"), ([b"\n", EVENT, DONE], b"503 No")]
)
async def test_what_is_no_whole_stream_is_an_error(pieces: list[bytes], status: bytes) -> None:
    async with server(pieces, status) as target:
        with pytest.raises(StreamError):
            await read_stream(target, Streamed())


async def test_a_stream_that_starves_shows() -> None:
    async with server([b"\n", *[EVENT] * 20, DONE]) as target:
        rate, early = await events_per_s(target, 3)
    assert rate > 0
    assert max(early) == 20


async def test_the_ratio_is_that_of_the_two_rates() -> None:
    async with server([b"\n", 200 * EVENT, DONE]) as fast, server([b"\n", EVENT, DONE]) as slow:
        report = await compare(slow, fast, slow, fast, num_streams=2, num_rounds=3, num_first_bytes=10)
    assert report["ratio"] < 0.5
    assert report["events_per_s"] < report["events_per_s_bare"]
