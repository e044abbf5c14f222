from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from dspine_cluster.api.generation import generate_all
from dspine_cluster.errors import EngineStoppedError
from dspine_cluster.types import GenerateRequest, SamplingParams, StopConditions
from tests.api.fakes import FakeGenerator


def requests(count: int, max_tokens: int = 10) -> list[GenerateRequest]:
    return [
        GenerateRequest(str(index), (index,), SamplingParams(), StopConditions(max_tokens=max_tokens))
        for index in range(count)
    ]


@pytest.mark.parametrize("count", [1, 2, 5])
async def test_each_request_yields_its_own_rounds_in_order(count: int) -> None:
    texts = [""] * count
    async for index, output in generate_all(FakeGenerator(), requests(count)):
        texts[index] += output.text
    assert texts == [FakeGenerator.text(request) for request in requests(count)]


async def test_requests_run_at_the_same_time() -> None:
    generator = FakeGenerator(round_s=0.01)
    async with aclosing(generate_all(generator, requests(4))) as outputs:
        await anext(outputs)
        assert generator.num_running == 4


@pytest.mark.parametrize("count", [1, 3])
async def test_closing_aborts_every_request(count: int) -> None:
    generator = FakeGenerator()
    outputs = generate_all(generator, requests(count, max_tokens=1000))
    await anext(outputs)
    await outputs.aclose()
    assert (generator.num_running, generator.num_aborted) == (0, count)


@pytest.mark.parametrize("count", [1, 3])
async def test_cancelling_aborts_every_request(count: int) -> None:
    generator = FakeGenerator(round_s=60)

    async def consume() -> None:
        async for _ in generate_all(generator, requests(count)):
            pass

    task = asyncio.create_task(consume())
    while generator.num_running < count:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (generator.num_running, generator.num_aborted) == (0, count)


async def test_requests_do_not_run_ahead_of_a_slow_reader() -> None:
    generator = FakeGenerator()
    async with aclosing(generate_all(generator, requests(2, max_tokens=3000))) as outputs:
        await anext(outputs)
        for _ in range(10_000):  # turns of the event loop: far more than all rounds need
            await asyncio.sleep(0)
        assert generator.num_running == 2


@pytest.mark.parametrize("count", [1, 3])
async def test_a_generation_without_an_end_is_an_error(count: int) -> None:
    with pytest.raises(EngineStoppedError):
        async for _ in generate_all(FakeGenerator(ends_silently=True), requests(count)):
            pass
