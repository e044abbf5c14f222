"""Many streams, half of whose clients leave at random moments: what the others notice, and what is held afterwards."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dspine_cluster.bench.http import Streamed, StreamError, StreamTarget, read_stream
from dspine_cluster.bench.statistics import quantile

Held = Callable[[], Awaitable[dict[str, float]]]
"""What requests hold on the server's side, by name: nothing when all have gone."""
_POLL_S = 0.2
_FIRST_ERRORS = 3


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one request."""

    taken_s: float
    """From the connection to the last byte."""
    first_byte_s: float
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """What the clients of one run got, and how long the server held anything after the last of them."""

    kept: list[Outcome]
    """Of those that stay; in both kinds of runs the same requests."""
    others: list[Outcome]
    """Of those that left, or would have: only what ended before that."""
    num_left: int
    drain_s: float
    leaks: dict[str, float]


async def run_load(
    targets: Sequence[StreamTarget],
    leave_after_s: Sequence[float] | None,
    held: Held,
    *,
    drain_timeout_s: float,
) -> Load:
    """Streams of all targets at the same time. Clients of every other one leave, each after its time, unless it is
    None."""
    streams = [asyncio.create_task(_stream(target)) for target in targets]
    leavers = streams[1::2]
    if leave_after_s is not None:
        for stream, after_s in zip(leavers, leave_after_s, strict=True):
            asyncio.get_running_loop().call_later(after_s, stream.cancel)
    await asyncio.wait(streams)
    ended_at_s = time.perf_counter()
    while (leaks := await held()) and time.perf_counter() < ended_at_s + drain_timeout_s:
        await asyncio.sleep(_POLL_S)
    stayed = [stream for stream in leavers if not stream.cancelled()]
    return Load(
        [stream.result() for stream in streams[::2]],
        [stream.result() for stream in stayed],
        len(leavers) - len(stayed),
        time.perf_counter() - ended_at_s,
        leaks,
    )


async def compare_drops(
    targets: Sequence[StreamTarget],
    held: Held,
    *,
    num_rounds: int,
    seed: int,
    drain_timeout_s: float = 60.0,
) -> dict[str, Any]:
    """The same load in turns, without anybody who leaves and with half of the clients leaving at random moments, of
    which each is before half of those that stayed in the run before had ended."""
    moments = random.Random(seed)
    whole: list[Load] = []
    dropped: list[Load] = []
    for _ in range(num_rounds):
        whole.append(await run_load(targets, None, held, drain_timeout_s=drain_timeout_s))
        usual_s = quantile(sorted(outcome.taken_s for outcome in whole[-1].kept), 0.5)
        leave_after_s = [moments.uniform(0.0, usual_s) for _ in targets[1::2]]
        dropped.append(await run_load(targets, leave_after_s, held, drain_timeout_s=drain_timeout_s))
    errors = [
        outcome.error
        for load in (*whole, *dropped)
        for outcome in (*load.kept, *load.others)
        if outcome.error
    ]
    before, after = _seconds(whole), _seconds(dropped)
    return {
        "connections": len(targets),
        "rounds": num_rounds,
        "num_left": sum(load.num_left for load in dropped),
        "num_failed": len(errors),
        "first_errors": errors[:_FIRST_ERRORS],
        "p50_s": after["p50_s"],
        "p50_s_without_drops": before["p50_s"],
        "p99_s": after["p99_s"],
        "p99_s_without_drops": before["p99_s"],
        "p99_ratio": after["p99_s"] / before["p99_s"],
        "ttfb_p99_s": after["ttfb_p99_s"],
        "ttfb_p99_s_without_drops": before["ttfb_p99_s"],
        "drain_s": max(load.drain_s for load in dropped),
        "leaks": {name: value for load in (*whole, *dropped) for name, value in load.leaks.items()},
    }


async def _stream(target: StreamTarget) -> Outcome:
    started_s = time.perf_counter()
    streamed = Streamed()
    error = None
    try:
        await read_stream(target, streamed)
    except (StreamError, OSError, asyncio.IncompleteReadError) as failed:
        error = repr(failed)
    return Outcome(time.perf_counter() - started_s, streamed.first_byte_s, error)


def _seconds(loads: Sequence[Load]) -> dict[str, float]:
    kept = [outcome for load in loads for outcome in load.kept]
    taken_s = sorted(outcome.taken_s for outcome in kept)
    first_s = sorted(outcome.first_byte_s for outcome in kept)
    return {
        "p50_s": quantile(taken_s, 0.5),
        "p99_s": quantile(taken_s, 0.99),
        "ttfb_p99_s": quantile(first_s, 0.99),
    }
