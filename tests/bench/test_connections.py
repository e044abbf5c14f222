from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest

from dspine_cluster.bench.connections import Load, compare_drops, run_load
from dspine_cluster.bench.http import StreamTarget


@dataclass
class Server:
    """Streams events as long as the clients stay, or until it is told to end."""

    port: int = 0
    status: bytes = b"200 OK"
    leaks: bool = False
    num_open: int = 0
    num_left: int = 0
    may_end: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n{}")
        self.num_open += 1
        leaving = asyncio.ensure_future(reader.read())
        ending = asyncio.ensure_future(self.may_end.wait())
        writer.write(b"HTTP/1.1 " + self.status + b"\r\n\r\ndata: {}\n\n")
        await asyncio.wait((leaving, ending), return_when=asyncio.FIRST_COMPLETED)
        if leaving.done():
            self.num_left += 1
        else:
            writer.write(b"\ndata: {}\n\ndata: [DONE]\n\n")
        leaving.cancel()
        ending.cancel()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        if not (self.leaks and self.num_left):
            self.num_open -= 1

    async def held(self) -> dict[str, float]:
        return {"streams": self.num_open} if self.num_open else {}

    @property
    def targets(self) -> list[StreamTarget]:
        return [StreamTarget(self.port, "/x", {})] * 8


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[Server]:
    listening = await asyncio.start_server(server.answer, "127.0.0.1", 0)
    async with listening:
        server.port = listening.sockets[0].getsockname()[1]
        yield server


async def load_of(server: Server, leave_after_s: list[float]) -> Load:
    """The server ends once all have left who will."""

    async def end() -> None:
        while server.num_left < len(leave_after_s):
            await asyncio.sleep(0.001)
        server.may_end.set()

    ending = asyncio.create_task(end())
    load = await run_load(server.targets, leave_after_s, server.held, drain_timeout_s=0.5)
    await ending
    return load


async def test_every_other_client_leaves_and_the_others_get_everything() -> None:
    async with serving(Server()) as server:
        load = await load_of(server, [0.05] * 4)
    assert (load.num_left, server.num_left) == (4, 4)
    assert [outcome.error for outcome in load.kept] == [None] * 4
    assert all(outcome.taken_s >= 0.04 for outcome in load.kept)
    assert load.leaks == {}


async def test_what_is_held_afterwards_is_told() -> None:
    async with serving(Server(leaks=True)) as server:
        load = await load_of(server, [0.05] * 4)
    assert load.leaks["streams"] > 0
    assert load.drain_s >= 0.5


async def test_refused_requests_are_counted() -> None:
    server = Server(status=b"429 No")
    server.may_end.set()
    async with serving(server):
        report = await compare_drops(server.targets, server.held, num_rounds=1, seed=1)
    assert report["num_failed"] >= 8
    assert "429 No" in report["first_errors"][0]


async def test_the_ratio_is_of_the_same_requests_with_and_without_clients_that_leave() -> None:
    server = Server()
    server.may_end.set()
    async with serving(server):
        report = await compare_drops(server.targets, server.held, num_rounds=2, seed=1)
    assert report["p99_ratio"] == pytest.approx(report["p99_s"] / report["p99_s_without_drops"])
    assert (report["num_failed"], report["leaks"]) == (0, {})
    assert 0 <= report["num_left"] <= 8
