"""The time that a loop's rounds take, without what is spent in models."""

from __future__ import annotations

import cProfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Seconds: TypeAlias = npt.NDArray[np.float64]
"""CPU time of the thread, wall time: [2]."""
_PASS_S = 12.5e-3
_TOKEN_S = 0.07e-3
"""What a pass takes at least on one GPU at 27B, and what a token takes in a large one: for the policy that decides by
time."""
_ZERO = np.zeros(2)


class Stopwatch:
    """CPU and wall time of one thread, that of models and of sampling kept apart."""

    def __init__(self) -> None:
        self._model = self._sampling = _ZERO
        self._virtual_s = 1.0

    def clock(self) -> float:
        """A clock on which passes take the time that they would take, and nothing else does: what is decided by it is
        the same on every machine."""
        return self._virtual_s

    def note_pass(self, num_tokens: int) -> None:
        """Let the clock move on by the time of a pass."""
        self._virtual_s += max(_PASS_S, _TOKEN_S * num_tokens)

    def take(self) -> Spent:
        """What was spent in models and in sampling since last asked; of sampling without the models beneath it."""
        spent = Spent(self._model, self._sampling)
        self._model = self._sampling = _ZERO
        return spent

    @contextmanager
    def in_model(self) -> Iterator[None]:
        start = now()
        yield
        self._model = self._model + now() - start

    @contextmanager
    def in_sampling(self) -> Iterator[None]:
        start, model = now(), self._model
        yield
        self._sampling = self._sampling + now() - start - (self._model - model)


class Spent(NamedTuple):
    """What `Stopwatch.take` gives."""

    model: Seconds
    sampling: Seconds


def now() -> Seconds:
    """This thread's CPU time and the wall clock."""
    return np.array((time.thread_time(), time.perf_counter()))


class Round(NamedTuple):
    """What one round took, without the models."""

    host: Seconds
    sampling: Seconds


class Rounds:
    """Sums up steps by round."""

    def __init__(self, stopwatch: Stopwatch, profile: cProfile.Profile | None = None) -> None:
        self.done: list[Round] = []
        self._stopwatch = stopwatch
        self._profile = profile
        self._steps = self._start = np.zeros(2)
        stopwatch.take()

    def __enter__(self) -> None:
        if self._profile is not None:
            self._profile.enable()
        self._start = now()

    def __exit__(self, *raised: object) -> None:
        self._steps = self._steps + now() - self._start
        if self._profile is not None:
            self._profile.disable()

    def end(self, *, counts: bool = True) -> None:
        """The steps since the last round make one."""
        spent = self._stopwatch.take()
        if counts:
            self.done.append(Round(self._steps - spent.model - spent.sampling, spent.sampling))
        self._steps = np.zeros(2)
