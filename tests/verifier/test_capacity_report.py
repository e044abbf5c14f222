from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from dspine_cluster.core.autoscaling_report import decode_verifier
from dspine_cluster.core.verify_length import FixedVerifyLength
from dspine_cluster.verifier import capacity_report
from dspine_cluster.verifier.capacity_report import CapacityReport, verifier_stats
from tests.verifier.harness import (
    LoopHarness,
    dense_config,
    make_request,
    random_prompts,
    random_target,
    time_passes,
)

PASS_S = 0.02


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> LoopHarness:
    """Plain decoding, one pass every 20 ms."""
    harness = LoopHarness(random_target(dense_config(), seed=0), policy=FixedVerifyLength(0))
    time_passes(monkeypatch, harness, lambda num_tokens: PASS_S)
    return harness


def decode(harness: LoopHarness, num_requests: int, num_steps: int) -> None:
    for uid, prompt in enumerate(random_prompts(num_requests, seed=1)):
        harness.submit(uid, make_request(prompt, max_tokens=200, ignore_eos=True))
    for _ in range(num_steps):
        harness.step()


def test_a_loop_tells_its_rounds(harness: LoopHarness) -> None:
    verifier_stats(harness.loop, harness.clock.now_s)
    decode(harness, num_requests=4, num_steps=100)
    stats = verifier_stats(harness.loop, harness.clock.now_s)
    assert stats is not None
    assert stats.acceptance_length == 1.0
    assert stats.round_s == pytest.approx(PASS_S, rel=0.05)
    assert stats.running_requests == pytest.approx(4, rel=0.05)
    assert stats.committed_tokens_per_s == pytest.approx(4 / PASS_S, rel=0.05)
    assert stats.prefill_tokens_per_s == pytest.approx(
        sum(map(len, random_prompts(4, seed=1))) / harness.clock.now_s
    )
    assert stats.speculation_gain == 0.0


def test_what_waits_counts_beside_what_runs(harness: LoopHarness) -> None:
    decode(harness, num_requests=12, num_steps=20)
    stats = verifier_stats(harness.loop, harness.clock.now_s)
    assert stats is not None
    assert len(harness.loop.streams.running) == stats.max_requests == 8
    assert stats.waiting_tokens == 4 * 200
    assert stats.running_tokens == sum(s.remaining_output for s in harness.loop.streams.running)
    assert stats.queued_prefill_tokens == harness.loop.streams.queued_tokens > 0


def test_the_loop_s_thread_makes_the_report_when_it_comes_to_it(harness: LoopHarness) -> None:
    decode(harness, num_requests=2, num_steps=20)
    commands: list[Callable[[], None]] = []

    async def take() -> dict[str, float]:
        report = CapacityReport(harness.loop, commands.append)
        task = asyncio.create_task(report.take())
        while not commands:
            await asyncio.sleep(0)
        commands.pop()()
        return await task

    stats = decode_verifier("v", asyncio.run(take()), 0.0)
    assert stats is not None
    assert stats.running_requests > 0


def test_while_a_pass_goes_on_and_on_the_last_figures_are_told_with_their_age(
    harness: LoopHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity_report, "_WAIT_S", 0.01)
    decode(harness, num_requests=2, num_steps=20)
    is_stuck = False

    def command(call: Callable[[], None]) -> None:
        if not is_stuck:
            call()

    async def take_twice() -> list[dict[str, float]]:
        nonlocal is_stuck
        report = CapacityReport(harness.loop, command)
        first = await report.take()
        is_stuck = True
        return [first, await report.take()]

    first, second = (decode_verifier("v", values, 0.0) for values in asyncio.run(take_twice()))
    assert first is not None
    assert second is not None
    assert second.round_s == first.round_s
    assert second.age_s - first.age_s >= 0.01


def test_there_is_nothing_to_tell_before_the_first_round(harness: LoopHarness) -> None:
    async def take() -> dict[str, float]:
        return await CapacityReport(harness.loop, lambda call: call()).take()

    assert asyncio.run(take()) == {}
