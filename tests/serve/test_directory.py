from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import replace
from typing import TypeVar

import pytest

from dspine_cluster.core.cluster_records import (
    IDLE,
    ClusterUpdates,
    Cursor,
    DrafterRecord,
    Fingerprints,
    Removal,
    ReplicaDelta,
    ReplicaLoad,
    VerifierRecord,
)
from dspine_cluster.core.cluster_view import DeltaReply
from dspine_serve import directory as module
from dspine_serve.directory import Directory

T = TypeVar("T")

OURS, THEIRS = Fingerprints("t", "d1", "k"), Fingerprints("t", "d2", "k")
DRAFTER = DrafterRecord("a", "n1", ("unix:/a",), (), "epoch", OURS)
VERIFIER = VerifierRecord("v", "n1", "e")
LONG_S = 60.0


def delta(sequence: int, load: ReplicaLoad = IDLE, *, is_snapshot: bool = False) -> ReplicaDelta:
    return ReplicaDelta("v", "e", sequence, load, is_snapshot=is_snapshot)


async def with_verifier() -> tuple[Directory, Cursor]:
    """A directory, and the cursor of a reader that knows all of it."""
    directory = Directory()
    await directory.register(VERIFIER)
    assert await directory.push(delta(1, is_snapshot=True)) is DeltaReply.OK
    return directory, (await directory.updates(Cursor(), 0.0)).cursor


async def waiting(call: Awaitable[T]) -> asyncio.Task[T]:
    """A call that the directory keeps."""
    task = asyncio.ensure_future(call)
    await asyncio.sleep(0.01)
    assert not task.done()
    assert isinstance(task, asyncio.Task)
    return task


async def soon(task: asyncio.Task[T]) -> T:
    return await asyncio.wait_for(task, 5.0)


async def test_a_reader_with_something_to_read_is_answered_at_once() -> None:
    directory, _ = await with_verifier()
    updates = await asyncio.wait_for(directory.updates(Cursor(), LONG_S), 5.0)
    assert updates.events == (VERIFIER, delta(1, is_snapshot=True))


async def test_a_reader_that_knows_everything_is_answered_when_its_time_is_over() -> None:
    directory, cursor = await with_verifier()
    started_s = time.monotonic()
    assert await directory.updates(cursor, 0.05) == ClusterUpdates(cursor, ())
    assert time.monotonic() - started_s >= 0.05


async def test_one_event_wakes_all_who_wait() -> None:
    directory, cursor = await with_verifier()
    tasks = [await waiting(directory.updates(cursor, LONG_S)) for _ in range(5)]
    busy = delta(2, ReplicaLoad(running_requests=1))
    await directory.push(busy)
    assert [(await soon(task)).events for task in tasks] == [(busy,)] * 5


async def test_a_delta_that_changes_nothing_wakes_nobody() -> None:
    directory, cursor = await with_verifier()
    task = await waiting(directory.updates(cursor, LONG_S))
    assert await directory.push(delta(2)) is DeltaReply.OK
    await asyncio.sleep(0.01)
    assert not task.done()
    await directory.remove("v")
    assert (await soon(task)).events == (Removal("v"),)


async def test_silence_is_noticed_although_nobody_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(module, "AwakeClock", lambda _: lambda: now_s)
    directory, cursor = await with_verifier()
    task = await waiting(directory.updates(cursor, LONG_S))
    now_s = 3.1
    assert (await soon(task)).events[0] == Removal("v")


async def test_a_reader_that_leaves_is_forgotten() -> None:
    directory, cursor = await with_verifier()
    task = await waiting(directory.updates(cursor, LONG_S))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await directory.remove("v")


async def test_an_unknown_replica_is_told_to_register() -> None:
    directory = Directory()
    assert await directory.push(delta(1, is_snapshot=True)) is DeltaReply.REGISTER
    await directory.register(VERIFIER)
    assert await directory.push(delta(2)) is DeltaReply.SNAPSHOT
    assert await directory.push(delta(3, is_snapshot=True)) is DeltaReply.OK


async def test_a_verifier_hears_of_the_drafters_that_fit_it() -> None:
    directory = Directory()
    await directory.register(DRAFTER)
    assert (await directory.choose_drafters("n1", OURS)).endpoints == ("unix:/a",)
    assert (await directory.choose_drafters("n1", THEIRS)).endpoints == ()
    assert (await directory.choose_drafters("n2", OURS)).endpoints == ()


async def test_while_an_update_replaces_the_drafter_a_verifier_of_each_version_hears_of_its_own() -> None:
    directory = Directory()
    new = DrafterRecord("new", "n1", ("unix:/new",), ("tcp:new",), "epoch", THEIRS)
    await directory.register(DrafterRecord("old", "n2", ("unix:/old",), ("tcp:old",), "epoch", OURS))
    await directory.register(new)
    assert (await directory.choose_drafters("n1", OURS)).endpoints == ("tcp:old",)
    assert (await directory.choose_drafters("n2", THEIRS)).endpoints == ("tcp:new",)
    for models in (OURS, THEIRS):
        unchanged = replace(models, target="another")
        assert (await directory.choose_drafters("n1", unchanged)).endpoints == ()


async def test_a_verifier_is_answered_when_its_drafters_change_and_by_nothing_else() -> None:
    directory, _ = await with_verifier()
    task = await waiting(directory.choose_drafters("n1", OURS, (), LONG_S))
    await directory.push(delta(2, ReplicaLoad(running_requests=1)))
    await directory.register(DrafterRecord("b", "n2", ("unix:/b",), (), "epoch", OURS))
    await asyncio.sleep(0.01)
    assert not task.done()
    await directory.register(DRAFTER)
    assert (await soon(task)).endpoints == ("unix:/a",)
