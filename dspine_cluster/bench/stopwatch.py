"""The time that a loop's rounds take, without what is spent in models."""

from __future__ import annotations

import cProfile
import time
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Seconds: TypeAlias = npt.NDArray[np.float64]
"""CPU time of the thread, wall time: [2]."""
_PASS_S = 12.5e-3
_TOKEN_S = 0.07e-3
"""What a pass takes at least on one GPU at 27B, and what a token takes in a large one: for the policy that decides by
time."""


class Span:
    """CPU time of this thread and wall time that passed inside; entering and leaving take little beside."""

    def __init__(self, inner: Span | None = None) -> None:
        """What passes in `inner` meanwhile does not count."""
        self.cpu_s = self.wall_s = 0.0
        self._inner = inner

    def __enter__(self) -> None:
        if self._inner is not None:
            self.cpu_s += self._inner.cpu_s
            self.wall_s += self._inner.wall_s
        self._wall_start_s = time.perf_counter()
        self._cpu_start_s = time.thread_time()

    def __exit__(self, *raised: object) -> None:
        cpu_s = time.thread_time() - self._cpu_start_s
        self.cpu_s += cpu_s
        self.wall_s += time.perf_counter() - self._wall_start_s
        if self._inner is not None:
            self.cpu_s -= self._inner.cpu_s
            self.wall_s -= self._inner.wall_s

    def take(self) -> Seconds:
        """What has passed inside since this was last asked."""
        taken = np.array((self.cpu_s, self.wall_s))
        self.cpu_s = self.wall_s = 0.0
        return taken


class Stopwatch:
    """CPU and wall time of one thread, that of models and of sampling kept apart."""

    def __init__(self) -> None:
        self._model = Span()
        self._sampling = Span(self._model)
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
        return Spent(self._model.take(), self._sampling.take())

    def in_model(self) -> Span:
        return self._model

    def in_sampling(self) -> Span:
        return self._sampling


class Spent(NamedTuple):
    """What `Stopwatch.take` gives."""

    model: Seconds
    sampling: Seconds


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
        self._steps, self._waits = Span(), Span()
        stopwatch.take()

    @property
    def waiting(self) -> Span:
        """A loop waits inside. What it reads meanwhile takes CPU time, which counts; time that just passes does not."""
        return self._waits

    def __enter__(self) -> None:
        if self._profile is not None:
            self._profile.enable()
        self._steps.__enter__()

    def __exit__(self, *raised: object) -> None:
        self._steps.__exit__()
        if self._profile is not None:
            self._profile.disable()

    def end(self, *, counts: bool = True) -> None:
        """The steps since the last round make one."""
        spent, steps, waits = self._stopwatch.take(), self._steps.take(), self._waits.take()
        if counts:
            self.done.append(Round(steps + waits[0] - spent.model - spent.sampling, spent.sampling))
