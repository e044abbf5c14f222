from __future__ import annotations

import asyncio

import pytest

from dspine_serve.lifeline import Lifeline


async def test_a_result_is_passed_on() -> None:
    assert await Lifeline().wait(asyncio.sleep(0, "result")) == "result"


async def test_a_wait_without_a_result_ends_in_time() -> None:
    with pytest.raises(TimeoutError):
        await Lifeline().wait(asyncio.sleep(60), 0.01)


async def test_cutting_ends_the_present_wait_and_later_ones() -> None:
    lifeline = Lifeline()
    waiting = asyncio.create_task(lifeline.wait(asyncio.Event().wait()))
    await asyncio.sleep(0)
    lifeline.cut()
    with pytest.raises(TimeoutError):
        await waiting
    with pytest.raises(TimeoutError):
        await lifeline.wait(asyncio.Event().wait())


async def test_what_is_there_already_is_given_although_the_lifeline_is_cut() -> None:
    items: asyncio.Queue[str] = asyncio.Queue()
    items.put_nowait("item")
    lifeline = Lifeline()
    lifeline.cut()
    assert await lifeline.wait(items.get()) == "item"


@pytest.mark.parametrize("num_turns", range(4))
async def test_cutting_while_the_time_is_up_is_harmless(num_turns: int) -> None:
    lifeline = Lifeline()
    waiting = asyncio.create_task(lifeline.wait(asyncio.Event().wait(), 0))
    for _ in range(num_turns):
        await asyncio.sleep(0)
    lifeline.cut()
    with pytest.raises(TimeoutError):
        await waiting


async def test_a_cancellation_goes_on_through() -> None:
    waiting = asyncio.create_task(Lifeline().wait(asyncio.Event().wait(), 60))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
