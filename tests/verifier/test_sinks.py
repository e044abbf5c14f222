from __future__ import annotations

import asyncio

import pytest

from dspine_cluster.errors import EngineStoppedError
from dspine_cluster.types import RoundOutput
from dspine_cluster.verifier.sinks import Sink


def output(number: int) -> RoundOutput:
    return RoundOutput((number,), "")


async def test_everything_that_has_come_is_taken_at_once_and_in_order() -> None:
    sink = Sink(asyncio.get_running_loop())
    for number in range(3):
        sink.put(output(number))
    assert await sink.take() == [output(0), output(1), output(2)]
    assert len(sink) == 0


async def test_taking_waits_for_the_first_output() -> None:
    sink = Sink(asyncio.get_running_loop())
    taking = asyncio.create_task(sink.take())
    await asyncio.sleep(0.01)
    assert not taking.done()
    sink.put(output(1))
    assert await taking == [output(1)]


async def test_a_failure_comes_after_what_was_put_before_it() -> None:
    sink = Sink(asyncio.get_running_loop())
    sink.put(output(1))
    sink.put(EngineStoppedError("gone"))
    assert await sink.take() == [output(1)]
    with pytest.raises(EngineStoppedError):
        await sink.take()
