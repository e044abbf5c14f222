"""Two jobs that take turns, each on a clock that stands still while the other one runs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable
from typing import TypeVar

Result = TypeVar("Result")

SLICE_S = 0.15
"""Some tens of passes: a switch costs little of that, and the machine is seldom another one in the next slice."""
_SETTLE_S = 0.02
"""Time for both to ask for what they begin with, before the first of them runs: else it would be asked for that bit by
bit, and the other one all at once."""


class TurnClock:
    """The clock of a loop that is made to stand still at times: it does when it asks for the time, several times a pass
    or whenever it wakes, and goes on later as if no time had passed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._may_run = True
        self._run_s = 0.0  # up to `_since_s`
        self._since_s: float | None = time.perf_counter()
        """When it last began to run; None while it stands still."""

    def __call__(self) -> float:
        """Seconds that it has run, for the loop: it stands here until it may go on."""
        if not self._may_run:
            with self._changed:
                while not self._may_run:
                    self._stop()
                    self._changed.wait()
        return self.seconds()

    def seconds(self) -> float:
        """The same, for anybody: this does not wait."""
        with self._changed:
            return self._run_s + (0.0 if self._since_s is None else time.perf_counter() - self._since_s)

    def go(self) -> None:
        """Let the loop run; harmless when it does."""
        with self._changed:
            if self._since_s is None:
                self._since_s = time.perf_counter()
            self._may_run = True
            self._changed.notify_all()

    def hold(self) -> None:
        """Let a loop that has nothing to do begin nothing."""
        with self._changed:
            self._may_run = False
            self._stop()

    async def stand(self) -> None:
        """Have the loop stand still; returns once it does, or may run again."""
        self._may_run = False
        await asyncio.to_thread(self._wait_until_it_stands)

    def _wait_until_it_stands(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._since_s is None or self._may_run)

    def _stop(self) -> None:
        if self._since_s is not None and not self._may_run:
            self._run_s += time.perf_counter() - self._since_s
            self._since_s = None
            self._changed.notify_all()


async def take_turns(
    first: tuple[TurnClock, Awaitable[Result]],
    second: tuple[TurnClock, Awaitable[Result]],
    slice_s: float = SLICE_S,
) -> tuple[Result, Result]:
    """Run two jobs, `slice_s` of the one after `slice_s` of the other; when one has ended, the rest of the other.

    Each job comes with the clock of the loop that works for it and for nobody else; none may have begun.
    """
    jobs = [(clock, asyncio.ensure_future(job)) for clock, job in (first, second)]
    for clock, _ in jobs:
        clock.hold()
    try:
        await asyncio.sleep(_SETTLE_S)
        while unfinished := [(clock, job) for clock, job in jobs if not job.done()]:
            for clock, job in unfinished:
                clock.go()
                await asyncio.wait({job}, timeout=slice_s if len(unfinished) > 1 else None)
                standing = asyncio.ensure_future(clock.stand())
                await asyncio.wait({job, standing}, return_when=asyncio.FIRST_COMPLETED)
                clock.hold()  # of a job that has ended
                await standing
    finally:
        for clock, _ in jobs:
            clock.go()
    return await jobs[0][1], await jobs[1][1]
