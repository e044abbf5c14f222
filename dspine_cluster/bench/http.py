"""Measures servers that stream events, with a client that does as little as possible: it shares their cores."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import Any

_EVENT = b"\ndata: {"
_END = b"data: [DONE]"
_READ_BYTES = 1 << 18
_TAIL_BYTES = 64


@dataclass(frozen=True, slots=True)
class StreamTarget:
    """A server on the loopback address, and what it is asked."""

    port: int
    path: str
    body: dict[str, Any]
    """Asks for a stream that ends with `data: [DONE]`."""


@dataclass(slots=True)
class Streamed:
    """What one stream gave."""

    first_byte_s: float = 0.0
    """From the request to the first byte of the answer's body."""
    num_events: int = 0


class StreamError(Exception):
    """A server did not answer as asked."""


async def read_stream(target: StreamTarget, streamed: Streamed) -> None:
    """One request on a connection of its own, counted in `streamed` while it runs.

    Raises:
        StreamError: the status is not 200, or the stream was cut off.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
    try:
        body = json.dumps(target.body).encode()
        head = (
            f"POST {target.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        started_s = time.perf_counter()
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in answer.split(b"\r\n", 1)[0]:
            raise StreamError(answer.decode() + (await reader.read(2000)).decode())
        kept = tail = b""
        while data := await reader.read(_READ_BYTES):
            if not streamed.first_byte_s:
                streamed.first_byte_s = time.perf_counter() - started_s
            tail = (tail + data)[-_TAIL_BYTES:]
            # What was kept is too short to hold an event that was counted before.
            data = kept + data
            streamed.num_events += data.count(_EVENT)
            kept = data[1 - len(_EVENT) :]
            if _END in tail:
                return
        raise StreamError("the stream was cut off")
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def events_per_s(target: StreamTarget, num_streams: int) -> tuple[float, list[int]]:
    """Of `num_streams` streams at a time; and how many events each had when the first one ended."""
    streams = [Streamed() for _ in range(num_streams)]
    started_s = time.perf_counter()
    tasks = [asyncio.create_task(read_stream(target, streamed)) for streamed in streams]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    early = [streamed.num_events for streamed in streams]
    await asyncio.gather(*tasks)
    taken_s = time.perf_counter() - started_s
    return sum(streamed.num_events for streamed in streams) / taken_s, early


async def first_bytes_ms(target: StreamTarget, count: int) -> list[float]:
    """Milliseconds to the first byte, one request after the other."""
    times = []
    for _ in range(count):
        streamed = Streamed()
        await read_stream(target, streamed)
        times.append(1000.0 * streamed.first_byte_s)
    return times


async def compare(
    served: StreamTarget,
    bare: StreamTarget,
    short_served: StreamTarget,
    short_bare: StreamTarget,
    *,
    num_streams: int,
    num_rounds: int,
    num_first_bytes: int,
) -> dict[str, Any]:
    """Both in turns. The short ones are asked for first bytes, while nothing else runs."""
    for target in (served, bare):
        await events_per_s(target, min(num_streams, 8))
    rates: list[tuple[float, float]] = []
    early: list[int] = []
    for _ in range(num_rounds):
        rate, counts = await events_per_s(served, num_streams)
        rates.append((rate, (await events_per_s(bare, num_streams))[0]))
        early += counts
    served_ms: list[float] = []
    bare_ms: list[float] = []
    for _ in range(10):
        served_ms += await first_bytes_ms(short_served, num_first_bytes // 10)
        bare_ms += await first_bytes_ms(short_bare, num_first_bytes // 10)
    return {
        "streams": num_streams,
        "events_per_s": median(rate for rate, _ in rates),
        "events_per_s_bare": median(rate for _, rate in rates),
        "ratio": median(rate / bare_rate for rate, bare_rate in rates),
        "ttfb_added_ms_p50": _quantile(served_ms, 0.5) - _quantile(bare_ms, 0.5),
        "ttfb_added_ms_p99": _quantile(served_ms, 0.99) - _quantile(bare_ms, 0.99),
        "ttfb_ms_p50_bare": _quantile(bare_ms, 0.5),
        "early_events_min": min(early),
        "early_events_max": max(early),
    }


def _quantile(values: Sequence[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]
