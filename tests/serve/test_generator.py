from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError
from ray.serve.exceptions import BackPressureError, RequestCancelledError

from dspine_cluster.errors import EngineStoppedError, OverloadedError, RequestError
from dspine_cluster.types import FinishReason, GenerateRequest, RoundOutput, SamplingParams, StopConditions
from dspine_serve.generator import ServeGenerator

REQUEST = GenerateRequest("id", (1,), SamplingParams(), StopConditions(max_tokens=2))
ITEMS = [RoundOutput((1,), "a"), RoundOutput((2,), "b", finish_reason=FinishReason.LENGTH)]


class Stream:
    """Iterates like the response of a streaming handle."""

    def __init__(self, items: AsyncIterator[Any]) -> None:
        self._items = items
        self.is_cancelled = False

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._items

    def cancel(self) -> None:
        self.is_cancelled = True


class Handle:
    """A handle whose replica yields `items`; an exception among them is raised there."""

    def __init__(self, *items: Any) -> None:
        self.items = items
        self.options_given: dict[str, Any] = {}
        self.stream: Stream | None = None
        self.health: Callable[[], Any] = lambda: asyncio.sleep(0)

    def options(self, **options: Any) -> Handle:
        self.options_given = options
        return self

    def remote(self, *args: Any) -> Stream:
        self.stream = Stream(self._yield_items())
        return self.stream

    @property
    def check_health(self) -> Any:
        class Method:
            def __init__(self, answer: Callable[[], Any]) -> None:
                self.remote = answer

        return Method(self.health)

    async def _yield_items(self) -> AsyncGenerator[Any, None]:
        for item in self.items:
            if isinstance(item, RaisedByRay):
                raise item.error
            yield item


class RaisedByRay:
    def __init__(self, error: Exception) -> None:
        self.error = error


async def collect(handle: Handle) -> list[RoundOutput]:
    return [output async for output in ServeGenerator(handle).generate(REQUEST)]


async def test_rounds_are_passed_on() -> None:
    assert await collect(Handle(*ITEMS)) == ITEMS


async def test_outputs_travel_by_value_as_a_stream() -> None:
    handle = Handle()
    ServeGenerator(handle)
    assert handle.options_given == {"method_name": "generate", "stream": True, "_by_reference": False}


@pytest.mark.parametrize("error", [RequestError("bad", param="seed"), OverloadedError("full")])
async def test_a_refusal_of_the_verifier_is_raised_as_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        await collect(Handle(error))
    assert caught.value is error


@pytest.mark.parametrize("error", [ActorUnavailableError("gone", None), RequestCancelledError("id")])
async def test_a_lost_replica_is_an_engine_that_stopped(error: Exception) -> None:
    with pytest.raises(EngineStoppedError, match="send the request again"):
        await collect(Handle(ITEMS[0], RaisedByRay(error)))


async def test_a_full_queue_is_overload_with_its_retry_time() -> None:
    with pytest.raises(OverloadedError) as caught:
        await collect(Handle(RaisedByRay(BackPressureError(5, 5, 429, 7.0))))
    assert caught.value.retry_after_s == 7.0


async def test_closing_cancels_the_call() -> None:
    handle = Handle(*ITEMS)
    async with aclosing(ServeGenerator(handle).generate(REQUEST)) as outputs:
        await anext(outputs)
    assert handle.stream is not None
    assert handle.stream.is_cancelled


async def test_no_answering_verifier_is_an_engine_that_stopped() -> None:
    def unavailable() -> Any:
        raise ActorUnavailableError("gone", None)

    handle = Handle()
    handle.health = unavailable
    with pytest.raises(EngineStoppedError):
        await ServeGenerator(handle).check_health()
