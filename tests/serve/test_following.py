from __future__ import annotations

import asyncio
from random import Random

import pytest

from dspine_cluster.core.cluster_records import (
    IDLE,
    ClusterUpdates,
    DrafterRecord,
    Fingerprints,
    ReplicaDelta,
    ReplicaReport,
    VerifierRecord,
)
from dspine_cluster.core.placement import Placement, PlacementRequest, Placer
from dspine_serve import directory as directory_module
from dspine_serve.directory import Directory
from dspine_serve.following import Follower, follow_drafters
from dspine_serve.publishing import publish
from tests.serve.directory_handle import DirectoryHandle, running, until

MODELS = Fingerprints("t", "d", "k")
DRAFTER = DrafterRecord("a", "n1", ("unix:/a",), ("tcp:n1:a",), "epoch", MODELS)
VERIFIER = VerifierRecord("v", "n1", "e", MODELS)
COMPLETE_S = 3.1
"""When a directory that started at 0 has heard of all replicas, or of their silence."""


def idle() -> ReplicaReport:
    return ReplicaReport(IDLE)


class Picture:
    """A placer, and whether it would place a request now."""

    def __init__(self) -> None:
        self.placer = Placer(random=Random(0))
        self.num_updates = 0

    def apply(self, updates: ClusterUpdates) -> None:
        self.num_updates += 1
        self.placer.apply(updates)

    def places(self) -> bool:
        placement = self.placer.choose(PlacementRequest("uid", 10))
        self.placer.release("uid")
        return isinstance(placement, Placement)


async def test_every_follower_shares_the_directory_s_picture() -> None:
    handle, pictures = DirectoryHandle(), [Picture(), Picture()]
    followers = [Follower(handle, picture.apply, 0.001).run() for picture in pictures]
    async with running(publish(handle, VERIFIER, idle, 0.001), *followers):
        await until(lambda: all(picture.places() for picture in pictures))
        handle.remove.remote("v")
        await until(lambda: not any(picture.places() for picture in pictures))


async def test_what_is_known_is_not_told_again() -> None:
    handle = DirectoryHandle()
    assert handle.directory is not None
    told: list[ClusterUpdates] = []
    await handle.directory.register(VERIFIER)
    async with running(Follower(handle, told.append, 0.001).run()):
        await until(lambda: bool(told))
        await handle.directory.push(ReplicaDelta("v", "e", 1, IDLE, is_snapshot=True))
        await until(lambda: len(told) == 2)
    assert [type(event) for updates in told for event in updates.events] == [VerifierRecord, ReplicaDelta]


async def test_placement_goes_on_without_a_directory_and_follows_the_next() -> None:
    handle, picture = DirectoryHandle(), Picture()
    async with running(publish(handle, VERIFIER, idle, 0.001), Follower(handle, picture.apply, 0.001).run()):
        await until(picture.places)
        handle.directory = None
        num_calls = handle.calls.count("updates")
        await until(lambda: handle.calls.count("updates") > num_calls)
        assert picture.places()
        handle.directory = Directory()
        num_updates = picture.num_updates
        await until(lambda: picture.num_updates > num_updates)
        assert picture.places()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the directories of a test take for the time: its only element."""
    now = [0.0]
    monkeypatch.setattr(directory_module, "AwakeClock", lambda _: lambda: now[0])
    return now


async def test_a_verifier_hears_of_a_drafter_on_its_node_and_of_its_end(now: list[float]) -> None:
    handle = DirectoryHandle()
    heard: list[list[str]] = []
    assert handle.directory is not None
    async with running(follow_drafters(handle, "n1", MODELS, heard.append, 0.001)):
        now[0] = COMPLETE_S
        await handle.directory.register(DRAFTER)
        await until(lambda: heard == [["unix:/a"]])
        await handle.directory.remove("a")
        await until(lambda: heard == [["unix:/a"], []])


async def test_a_verifier_uses_a_drafter_elsewhere_until_its_node_has_one(now: list[float]) -> None:
    handle = DirectoryHandle()
    heard: list[list[str]] = []
    assert handle.directory is not None
    async with running(follow_drafters(handle, "n2", MODELS, heard.append, 0.001)):
        now[0] = COMPLETE_S
        await handle.directory.register(DRAFTER)
        await until(lambda: heard == [["tcp:n1:a"]])
        await handle.directory.register(DrafterRecord("b", "n2", ("unix:/b",), (), "epoch", MODELS))
        await until(lambda: heard == [["tcp:n1:a"], ["unix:/b"]])


async def test_drafters_stay_while_the_directory_is_lost_and_restarts(now: list[float]) -> None:
    handle = DirectoryHandle()
    heard: list[list[str]] = []
    assert handle.directory is not None
    await handle.directory.register(DRAFTER)
    async with running(follow_drafters(handle, "n1", MODELS, heard.append, 0.001)):
        await until(lambda: bool(heard))
        handle.directory = None
        num_calls = len(handle.calls)
        now[0] = COMPLETE_S
        await until(lambda: len(handle.calls) > num_calls)
        handle.directory = Directory()
        await until(lambda: len(handle.calls) > num_calls + 1)
        await asyncio.sleep(0.05)
    assert heard == [["unix:/a"]]
