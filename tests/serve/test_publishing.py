from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from dspine_cluster.core.cluster_records import (
    IDLE,
    ClusterUpdates,
    Cursor,
    DrafterRecord,
    Fingerprints,
    ReplicaDelta,
    ReplicaLoad,
    ReplicaReport,
    VerifierRecord,
)
from dspine_cluster.core.cluster_view import DeltaReply
from dspine_cluster.errors import EngineStoppedError
from dspine_serve.directory import Directory
from dspine_serve.publishing import publish
from tests.serve.directory_handle import DirectoryHandle, running, until
from tests.snapshots import cached_keys

VERIFIER = VerifierRecord("v", "n1", "e")
KEYS = [bytes([i]) * 16 for i in range(4)]


class Replica:
    """Reports what it is given, once."""

    def __init__(self) -> None:
        self.load = IDLE
        self.news = ReplicaReport(IDLE)
        self.num_reports = 0
        self.failure: Exception | None = None

    def take_report(self) -> ReplicaReport:
        self.num_reports += 1
        if self.failure is not None:
            raise self.failure
        news, self.news = self.news, ReplicaReport(IDLE)
        return replace(news, load=self.load)

    def cache(self, *keys: bytes) -> None:
        self.news = ReplicaReport(IDLE, added=frozenset(keys))


def picture(directory: Directory | None) -> ClusterUpdates:
    assert directory is not None
    return directory._view.updates_since(Cursor(), directory._clock())


def cached(directory: Directory | None) -> set[bytes]:
    assert directory is not None
    return cached_keys(directory._view, "v", directory._clock())


def knows(handle: DirectoryHandle) -> Callable[[], bool]:
    """Whether the directory has the replica's record and its load."""
    return lambda: handle.directory is not None and len(picture(handle.directory).events) == 2


async def test_a_replica_registers_and_tells_everything() -> None:
    handle, replica = DirectoryHandle(), Replica()
    replica.cache(*KEYS[:2])
    replica.load = ReplicaLoad(running_requests=3)
    async with running(publish(handle, VERIFIER, replica.take_report, 0.001)):
        await until(knows(handle))
    record, delta = picture(handle.directory).events
    assert record == VERIFIER
    assert isinstance(delta, ReplicaDelta)
    assert (set(delta.added), delta.load) == (set(KEYS[:2]), replica.load)


async def test_changes_follow_one_by_one() -> None:
    handle, replica = DirectoryHandle(), Replica()
    async with running(publish(handle, VERIFIER, replica.take_report, 0.001)):
        await until(knows(handle))
        replica.cache(KEYS[0])
        await until(lambda: cached(handle.directory) == {KEYS[0]})
        replica.news = ReplicaReport(IDLE, frozenset([KEYS[1]]), frozenset([KEYS[0]]), ("r1",))
        await until(lambda: cached(handle.directory) == {KEYS[1]})
        assert handle.calls.count("register") == 1


async def test_a_replica_with_nothing_new_does_not_call_each_time() -> None:
    handle, replica = DirectoryHandle(), Replica()
    async with running(publish(handle, VERIFIER, replica.take_report, 0.001)):
        await until(knows(handle))
        num_calls, num_reports = len(handle.calls), replica.num_reports
        await until(lambda: replica.num_reports >= num_reports + 20)
        assert len(handle.calls) <= num_calls + 2


async def test_a_replica_with_nothing_new_still_says_that_it_lives() -> None:
    handle, replica = DirectoryHandle(), Replica()
    async with running(publish(handle, VERIFIER, replica.take_report, 0.001)):
        await until(knows(handle))
        num_calls = handle.calls.count("push")
        await until(lambda: handle.calls.count("push") >= num_calls + 2)


async def test_a_new_directory_is_told_everything() -> None:
    handle, replica = DirectoryHandle(), Replica()
    replica.cache(KEYS[0])
    async with running(publish(handle, VERIFIER, replica.take_report, 0.001)):
        await until(knows(handle))
        handle.directory = None
        replica.cache(KEYS[1])
        num_calls = len(handle.calls)
        await until(lambda: len(handle.calls) > num_calls)
        handle.directory = Directory()
        await until(lambda: cached(handle.directory) == set(KEYS[:2]))


async def test_a_delta_whose_answer_was_lost_is_made_good() -> None:
    handle, replica = DirectoryHandle(), Replica()
    directory = handle.directory
    assert directory is not None
    push, lost = directory.push, asyncio.Event()

    async def push_but_lose_one_answer(delta: ReplicaDelta) -> DeltaReply:
        reply = await push(delta)
        if not lost.is_set() and delta.added and not delta.is_snapshot:
            lost.set()
            raise ConnectionError("lost")
        return reply

    directory.push = push_but_lose_one_answer  # type: ignore[method-assign]
    async with running(publish(handle, VERIFIER, replica.take_report, 0.001)):
        await until(knows(handle))
        replica.cache(KEYS[0])
        await lost.wait()
        replica.cache(KEYS[1])
        await until(lambda: cached(directory) == set(KEYS[:2]))


async def test_a_replica_that_was_taken_out_comes_back() -> None:
    handle, replica = DirectoryHandle(), Replica()
    replica.cache(KEYS[0])
    async with running(publish(handle, VERIFIER, replica.take_report, 0.001)):
        await until(knows(handle))
        assert handle.directory is not None
        await handle.directory.remove("v")
        await until(knows(handle))
        assert cached(handle.directory) == {KEYS[0]}


async def test_a_report_that_fails_once_ends_nothing() -> None:
    handle, replica = DirectoryHandle(), Replica()
    replica.failure = ValueError("a bug")
    async with running(publish(handle, VERIFIER, replica.take_report, 0.001)):
        await until(lambda: replica.num_reports > 0)
        replica.failure = None
        await until(knows(handle))


async def test_a_replica_whose_engine_has_ended_is_taken_out() -> None:
    handle, replica = DirectoryHandle(), Replica()
    publishing = asyncio.ensure_future(publish(handle, VERIFIER, replica.take_report, 0.001))
    await until(knows(handle))
    replica.failure = EngineStoppedError("ended")
    await asyncio.wait_for(publishing, 5.0)
    await until(lambda: picture(handle.directory).events == ())


async def test_a_drafter_is_published_in_the_same_way() -> None:
    handle, replica = DirectoryHandle(), Replica()
    record = DrafterRecord("d", "n1", ("unix:/d",), (), "e", Fingerprints("t", "d", "k"))
    async with running(publish(handle, record, replica.take_report, 0.001)):
        await until(knows(handle))
    assert picture(handle.directory).events[0] == record
