"""A set of token positions, kept as ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class PositionRanges:
    """Sorted, disjoint, non-adjacent ranges `start <= position < end`."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        """Of each range, ascending. Changed by the methods below alone, as are `ends`."""
        self.ends: list[int] = []

    def __contains__(self, position: int) -> bool:
        return self.run_before(position + 1) <= position

    @property
    def ranges(self) -> list[tuple[int, int]]:
        return list(zip(self.starts, self.ends, strict=True))

    @property
    def end(self) -> int:
        """One past the last position; 0 when empty."""
        return self.ends[-1] if self.ends else 0

    def add(self, start: int, end: int) -> None:
        """Add the positions of a range that is not empty."""
        assert start < end
        if self.ends and self.ends[-1] == start:  # what mostly happens
            self.ends[-1] = end
            return
        first = bisect_left(self.ends, start)
        last = bisect_right(self.starts, end)
        if first < last:
            start = min(start, self.starts[first])
            end = max(end, self.ends[last - 1])
        self.starts[first:last] = [start]
        self.ends[first:last] = [end]

    def grow(self, end: int) -> None:
        """Add the positions that follow the last one, up to `end`."""
        assert end > self.ends[-1]
        self.ends[-1] = end

    def drop_before(self, position: int) -> None:
        """Remove all positions below `position`."""
        first = bisect_right(self.ends, position)
        del self.starts[:first]
        del self.ends[:first]
        if self.starts:
            self.starts[0] = max(self.starts[0], position)

    def remove(self, start: int, end: int) -> None:
        """Remove the positions of a range that is not empty; those that are missing stay so."""
        assert start < end
        first = bisect_right(self.ends, start)
        last = bisect_left(self.starts, end)
        if first >= last:
            return
        left = (self.starts[first], start)
        right = (end, self.ends[last - 1])
        kept = [(low, high) for low, high in (left, right) if low < high]
        self.starts[first:last] = [low for low, _ in kept]
        self.ends[first:last] = [high for _, high in kept]

    def covers(self, start: int, end: int) -> bool:
        """Whether none of `start <= position < end` is missing."""
        if self.ends and self.starts[-1] <= start and end <= self.ends[-1]:  # what mostly is asked
            return True
        return end <= start or self.run_before(end) <= start

    def gaps(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The runs of missing positions in `start <= position < end`, last run first."""
        while start < end:
            end = max(start, self.run_before(end))
            gap = max(start, self.gap_before(end))
            if gap < end:
                yield gap, end
            end = gap

    def missing_after(self, start: int, end: int) -> int | None:
        """The first missing position of `start <= position < end` if all after it are missing too, `end` if none is;
        None if missing and present ones alternate."""
        if not self.starts or self.ends[-1] <= start:
            return start
        first = self.ends[-1]
        if self.starts[-1] > start:
            return None
        return min(first, end)

    def run_before(self, end: int) -> int:
        """Start of the contiguous run whose last position is `end - 1`; `end` if that is not in the set."""
        index = bisect_left(self.starts, end) - 1
        return self.starts[index] if index >= 0 and self.ends[index] >= end else end

    def gap_before(self, end: int) -> int:
        """Start of the run of missing positions whose last is `end - 1`; `end` if that is not missing."""
        index = bisect_left(self.starts, end) - 1
        return min(self.ends[index], end) if index >= 0 else 0
