from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest

from dspine_serve.calls import within


class Response:
    """Awaits like a handle's response; answers after `delay_s`."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s
        self.is_cancelled = False

    def __await__(self) -> Generator[None, None, str]:
        yield from asyncio.sleep(self.delay_s).__await__()
        return "answer"

    def cancel(self) -> None:
        self.is_cancelled = True


async def test_an_answer_in_time_is_returned() -> None:
    response = Response(0)
    assert await within(1.0, response) == "answer"
    assert not response.is_cancelled


async def test_a_call_without_an_answer_is_cancelled() -> None:
    response = Response(60)
    with pytest.raises(TimeoutError):
        await within(0.01, response)
    assert response.is_cancelled


async def test_a_call_is_cancelled_with_its_caller() -> None:
    response = Response(60)
    task = asyncio.create_task(within(60, response))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert response.is_cancelled


@pytest.mark.parametrize("num_turns", range(5))
async def test_a_cancellation_is_not_lost_when_it_meets_the_answer(num_turns: int) -> None:
    task = asyncio.create_task(within(60, Response(0)))
    for _ in range(num_turns):
        await asyncio.sleep(0)
    if task.cancel():
        with pytest.raises(asyncio.CancelledError):
            await task
