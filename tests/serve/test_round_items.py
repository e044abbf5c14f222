from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.types import FinishReason, Logprobs, RoundOutput, Usage
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


async def test_items_of_many_streams_are_no_more_than_the_machine_passes_on() -> None:
    pacer = ItemPacer(num_cpus=2)
    loop = asyncio.get_running_loop()
    started_s = loop.time()

    async def read() -> int:
        return len([item async for item in pacer.items(_rounds(5))])

    counts = await asyncio.gather(*(read() for _ in range(20)))
    assert counts == [5] * 20
    assert loop.time() - started_s > 0.06


async def test_a_stream_alone_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses_s: list[float] = []

    async def sleep(delay_s: float) -> None:
        pauses_s.append(delay_s)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    pacer = ItemPacer(num_cpus=1)
    assert len([item async for item in pacer.items(_rounds(5))]) == 5
    assert pauses_s == [0] * 5  # those of the rounds
