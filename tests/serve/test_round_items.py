from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.types import FinishReason, Logprobs, RoundOutput, Usage
from dspine_serve import round_items
from dspine_serve.round_items import ItemPacer, pack_rounds, unpack_rounds

LOGPROBS = st.none() | st.builds(
    lambda chosen: Logprobs(tuple(chosen), ((1, 2),), ((-0.5, -1.5),)),
    st.lists(st.floats(-50, 0), max_size=3),
)
OUTPUTS = st.builds(
    RoundOutput,
    token_ids=st.lists(st.integers(0, 2**31), max_size=16).map(tuple),
    text=st.text(max_size=20),
    accepted_tokens=st.integers(0, 15),
    finish_reason=st.none() | st.sampled_from(FinishReason),
    usage=st.builds(Usage, st.integers(0, 10**6), st.integers(0, 10**6)),
    logprobs=LOGPROBS,
)


@given(st.lists(OUTPUTS, max_size=4))
def test_rounds_come_out_as_they_went_in(outputs: list[RoundOutput]) -> None:
    assert unpack_rounds(pack_rounds(outputs)) == outputs


async def _rounds(count: int) -> AsyncIterator[list[RoundOutput]]:
    for number in range(count):
        await asyncio.sleep(0)
        yield [RoundOutput((number,), "x")]


class Clock:
    """Time that passes only in pauses."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, delay_s: float) -> None:
        self.now_s += delay_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(round_items, "monotonic", clock)
    monkeypatch.setattr(asyncio, "sleep", clock.sleep)
    return clock


async def test_streams_wait_for_nothing_while_their_items_are_few(clock: Clock) -> None:
    pacer = ItemPacer(num_cpus=2)
    streams = [pacer.items(_rounds(50)) for _ in range(8)]
    for number in range(50):
        for stream in streams:
            await anext(stream)
        assert clock.now_s == pytest.approx(1000 + 0.05 * number)
        clock.now_s += 0.05


async def test_items_of_many_streams_are_no_more_than_the_machine_passes_on(clock: Clock) -> None:
    pacer = ItemPacer(num_cpus=2)
    streams = [pacer.items(_rounds(50)) for _ in range(8)]
    for _ in range(50):
        for stream in streams:
            await anext(stream)
    assert 400 * (clock.now_s - 1000) == pytest.approx(8 * 50, abs=2 * 8)


async def test_a_stream_alone_waits_for_nothing(clock: Clock) -> None:
    pacer = ItemPacer(num_cpus=1)
    assert len([item async for item in pacer.items(_rounds(50))]) == 50
    assert clock.now_s == 1000
