from __future__ import annotations

import asyncio

import pytest

from dspine_serve.lifeline import Lifeline


async def test_a_result_is_passed_on() -> None:
    assert await Lifeline().wait(asyncio.sleep(0, "result")) == "result"


async def test_a_wait_without_a_result_ends_in_time() -> None:
    with pytest.raises(TimeoutError):
        await Lifeline().wait(asyncio.sleep(60), 0.01)


async def test_a_limit_ends_the_present_wait_and_later_ones() -> None:
    lifeline = Lifeline()
    waiting = asyncio.create_task(lifeline.wait(asyncio.Event().wait()))
    await asyncio.sleep(0)
    lifeline.limit(0.01)
    with pytest.raises(TimeoutError):
        await waiting
    with pytest.raises(TimeoutError):
        await lifeline.wait(asyncio.Event().wait())


async def test_a_limit_counts_from_each_wait_on() -> None:
    lifeline = Lifeline()
    lifeline.limit(0.6)
    for _ in range(3):
        assert await lifeline.wait(asyncio.sleep(0.25, "item")) == "item"


async def test_without_the_limit_the_present_wait_goes_on() -> None:
    lifeline = Lifeline()
    waiting = asyncio.create_task(lifeline.wait(asyncio.sleep(0.1, "item")))
    await asyncio.sleep(0)
    lifeline.limit(0.05)
    lifeline.limit(None)
    assert await waiting == "item"


@pytest.mark.parametrize("limit_s", [60, None])
async def test_no_limit_makes_a_wait_longer_than_was_asked_for(limit_s: float | None) -> None:
    lifeline = Lifeline()
    waiting = asyncio.create_task(lifeline.wait(asyncio.Event().wait(), 0.01))
    await asyncio.sleep(0)
    lifeline.limit(limit_s)
    with pytest.raises(TimeoutError):
        await waiting


async def test_what_is_there_already_is_given_under_a_limit_of_zero() -> None:
    items: asyncio.Queue[str] = asyncio.Queue()
    items.put_nowait("item")
    lifeline = Lifeline()
    lifeline.limit(0)
    assert await lifeline.wait(items.get()) == "item"


@pytest.mark.parametrize("num_turns", range(4))
async def test_a_limit_while_the_time_is_up_is_harmless(num_turns: int) -> None:
    lifeline = Lifeline()
    waiting = asyncio.create_task(lifeline.wait(asyncio.Event().wait(), 0))
    for _ in range(num_turns):
        await asyncio.sleep(0)
    lifeline.limit(0)
    with pytest.raises(TimeoutError):
        await waiting


async def test_a_cancellation_goes_on_through() -> None:
    waiting = asyncio.create_task(Lifeline().wait(asyncio.Event().wait(), 60))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
