"""A histogram that is counted in place: one search and one addition, however many observations an entry stands for."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate
from math import inf

from dspine_cluster.observability.series import number, series


class Histogram:
    """Written by one thread; others may ask for `figures`."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """`bounds` are the upper bounds of the buckets, ascending and inclusive; one without a bound follows."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def note(self, value: float, times: int = 1) -> None:
        """`value` was observed so many times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._total += value * times

    def figures(self, name: str, labels: Mapping[str, str] | None = None) -> dict[str, float]:
        """As Prometheus has them: cumulative counts by `le`, their sum and their number."""
        labels = labels or {}
        cumulative = list(
            accumulate(self._counts[:])
        )  # copied in one go: the writer may note something meanwhile
        figures: dict[str, float] = {
            series(f"{name}_bucket", {**labels, "le": number(bound)}): count
            for bound, count in zip((*self._bounds, inf), cumulative, strict=True)
        }
        figures[series(f"{name}_sum", labels)] = self._total
        figures[series(f"{name}_count", labels)] = cumulative[-1]
        return figures


def histogram_of(rounds_by_length: Mapping[int, int], bounds: tuple[float, ...]) -> Histogram:
    """The histogram of values that were counted one by one."""
    histogram = Histogram(bounds)
    for length, rounds in rounds_by_length.items():
        histogram.note(length, rounds)
    return histogram
