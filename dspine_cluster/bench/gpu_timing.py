"""Medians of repeated runs, by device events on a GPU, and the ceilings that floors are computed from."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch

from dspine_cluster.bench.gpu_floors import Ceilings

_FLUSH_BYTES = 256 * 2**20
"""More than any cache holds; written between runs, so that none finds the weights of the one before."""


@dataclass(frozen=True, slots=True)
class Timing:
    """What some runs took."""

    median_ms: float
    num_runs: int


class Timer:
    """Times work on one device."""

    def __init__(self, device: torch.device, *, part_s: float, max_runs: int) -> None:
        """About `part_s` seconds and at most `max_runs` runs for each figure, three runs at least."""
        self._device = device
        self._part_s = part_s
        self._max_runs = max_runs
        self._flush = torch.empty(
            _FLUSH_BYTES if device.type == "cuda" else 0, dtype=torch.int8, device=device
        )

    def measure(self, run: Callable[[], object]) -> Timing:
        """The median of the runs after two that warm up. Includes what the host does between launches."""
        run()
        self._synchronize()
        started_s = time.perf_counter()
        run()
        self._synchronize()
        one_s = max(1e-6, time.perf_counter() - started_s)
        num_runs = max(3, min(self._max_runs, int(self._part_s / one_s)))
        time_ms = self._events if self._device.type == "cuda" else self._clock
        return Timing(median(time_ms(run, num_runs)), num_runs)

    def _events(self, run: Callable[[], object], num_runs: int) -> list[float]:
        pairs = []
        for _ in range(num_runs):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self._flush.zero_()
            start.record()
            run()
            end.record()
            pairs.append((start, end))
        self._synchronize()
        return [start.elapsed_time(end) for start, end in pairs]

    @staticmethod
    def _clock(run: Callable[[], object], num_runs: int) -> list[float]:
        taken_ms = []
        for _ in range(num_runs):
            started_s = time.perf_counter()
            run()
            taken_ms.append(1e3 * (time.perf_counter() - started_s))
        return taken_ms

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def measure_ceilings(timer: Timer, device: torch.device, *, copy_bytes: int, matrix_size: int) -> Ceilings:
    """A copy of `copy_bytes`, and the product of two random bf16 matrices of `matrix_size` squared."""
    copy_ms = timer.measure(_copy(copy_bytes, device)).median_ms
    product_ms = timer.measure(_product(matrix_size, device)).median_ms
    return Ceilings(
        bytes_per_s=2 * copy_bytes / copy_ms * 1e3,
        operations_per_s=2 * matrix_size**3 / product_ms * 1e3,
    )


def _copy(num_bytes: int, device: torch.device) -> Callable[[], object]:
    source = torch.empty(num_bytes, dtype=torch.int8, device=device).random_(0, 100)
    copy = torch.empty_like(source)
    return lambda: copy.copy_(source)


def _product(size: int, device: torch.device) -> Callable[[], object]:
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=out)
