from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from dspine_cluster.bench.alternation import TurnClock, take_turns


class Loop:
    """Works in a thread of its own, asking its clock for the time before every step, as a verifier's loop does."""

    def __init__(
        self,
        num_steps: int,
        step: Callable[[], None] = lambda: None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self.clock = TurnClock()
        self.num_steps = num_steps
        self.times_s: list[float] = []
        self._step = step
        self._is_over = is_over

    async def run(self) -> int:
        return await asyncio.to_thread(self._work)

    def _work(self) -> int:
        for _ in range(self.num_steps):
            self.times_s.append(self.clock())
            self._step()
            if self._is_over():
                break
        return self.num_steps


def alternate(first: Loop, second: Loop, slice_s: float = 0.0) -> tuple[int, int]:
    async def both() -> tuple[int, int]:
        return await take_turns((first.clock, first.run()), (second.clock, second.run()), slice_s)

    return asyncio.run(both())


def test_never_do_both_run_and_each_gives_its_own_result() -> None:
    lock = threading.Lock()
    overlaps = []

    def step() -> None:
        overlaps.append(not lock.acquire(blocking=False))
        lock.release()

    assert alternate(Loop(300, step), Loop(200, step)) == (300, 200)
    assert overlaps == [False] * 500


def test_a_loop_that_stands_still_is_not_aware_of_it() -> None:
    first, second = Loop(100), Loop(100)
    alternate(first, second)
    for loop in (first, second):
        assert loop.times_s == sorted(loop.times_s)
    clock = TurnClock()
    clock.hold()
    before_s = clock.seconds()
    threading.Event().wait(0.01)
    assert clock.seconds() == before_s
    clock.go()
    assert clock() >= before_s


def test_a_job_that_goes_on_and_on_lets_the_other_one_run() -> None:
    second = Loop(10)
    first = Loop(10**7, is_over=lambda: len(second.times_s) == 10)
    alternate(first, second)
    assert len(first.times_s) < 10**7


def test_whoever_has_more_to_do_goes_on_alone_and_both_may_run_afterwards() -> None:
    first, second = Loop(1), Loop(500)
    assert alternate(first, second) == (1, 500)
    assert first.clock() >= 0.0
    assert second.clock() >= second.times_s[-1]


def test_a_failure_is_passed_on_and_leaves_no_clock_standing() -> None:
    def fail() -> None:
        raise ValueError("no")

    first, second = Loop(1, fail), Loop(50)
    with pytest.raises(ValueError, match="no"):
        alternate(first, second)
    assert first.clock() >= 0.0
    assert second.clock() >= 0.0


def test_an_interruption_waits_for_no_loop_to_stand_still() -> None:
    """These loops never ask for the time."""

    class Watched(TurnClock):
        def __init__(self, is_asked: asyncio.Event) -> None:
            super().__init__()
            self._is_asked = is_asked

        async def stand(self) -> None:
            self._is_asked.set()
            await super().stand()

    async def interrupted() -> None:
        is_asked, never = asyncio.Event(), asyncio.Event()
        first, second = ((Watched(is_asked), never.wait()) for _ in range(2))
        turns = asyncio.ensure_future(take_turns(first, second, 0.0))
        await is_asked.wait()
        turns.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turns

    asyncio.run(interrupted())
