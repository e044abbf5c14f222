from __future__ import annotations

from dspine_cluster.core.cluster_records import DrafterRecord
from dspine_serve.directory import Directory

RECORD = DrafterRecord("a", "n1", ("unix:/a",), (), "epoch")


async def test_a_registered_drafter_is_offered_to_verifiers_of_its_node() -> None:
    directory = Directory()
    await directory.register(RECORD)
    assert (await directory.choose_drafters("n1")).endpoints == ("unix:/a",)
    assert (await directory.choose_drafters("n2")).endpoints == ()


async def test_a_directory_that_forgot_asks_to_register() -> None:
    directory = Directory()
    assert not await directory.heartbeat("a")
    await directory.register(RECORD)
    assert await directory.heartbeat("a")


async def test_a_removed_drafter_is_offered_no_more() -> None:
    directory = Directory()
    await directory.register(RECORD)
    await directory.remove("a")
    assert (await directory.choose_drafters("n1")).endpoints == ()
