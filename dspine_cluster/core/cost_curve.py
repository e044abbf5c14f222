"""The time of a pass as a function of its tokens."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from sys import maxsize


class CostShape:
    """What the tokens of a pass take, whatever else it holds: piecewise linear, with the steps that padding to
    `buckets` makes."""

    def __init__(
        self,
        starts: Sequence[int],
        values_s: Sequence[float],
        slopes_s: Sequence[float],
        buckets: Sequence[int] = (),
    ) -> None:
        """
        Args:
            starts: token counts, ascending, the first of them 0.
            values_s: at these.
            slopes_s: seconds a token, from each start to the next.
            buckets: sizes, ascending, to which the tokens of a pass are padded; larger ones are not padded.
        """
        self.starts, self.slopes_s, self.buckets = starts, slopes_s, buckets
        self._values_s = values_s
        self.bucket_s = [self._unpadded_s(bucket) for bucket in buckets]
        """Of full buckets."""

    def seconds(self, num_tokens: int) -> float:
        i = bisect_left(self.buckets, num_tokens)
        return self.bucket_s[i] if i < len(self.bucket_s) else self._unpadded_s(num_tokens)

    def _unpadded_s(self, num_tokens: int) -> float:
        i = bisect_right(self.starts, num_tokens) - 1
        return self._values_s[i] + self.slopes_s[i] * (num_tokens - self.starts[i])


@dataclass(slots=True)
class CostCurve:
    """The time of a pass, never falling, with a step where the first proposal is verified."""

    shape: CostShape
    min_s: float = 0.0
    """No pass takes less."""
    plain_tokens: int = 0
    """Of the pass without any proposal."""
    block_s: float = 0.0
    """What a pass with proposals takes beyond that."""
    base_s: float = 0.0
    """What any pass takes beyond `shape`."""

    def seconds(self, num_tokens: int) -> float:
        base_s = self.base_s + self.block_s if num_tokens > self.plain_tokens else self.base_s
        return max(self.min_s, base_s + self.shape.seconds(num_tokens))

    def stretch(self, num_tokens: int) -> tuple[int, float]:
        """Up to where every token more costs the same as from `num_tokens` on, and how many seconds."""
        buckets, starts, slopes_s = self.shape.buckets, self.shape.starts, self.shape.slopes_s
        i = bisect_left(buckets, num_tokens)
        if i < len(buckets):
            until, token_s = buckets[i], 0.0
        else:
            i = bisect_right(starts, num_tokens)
            until, token_s = starts[i] if i < len(starts) else maxsize, slopes_s[i - 1]
        if self.block_s and num_tokens <= self.plain_tokens:
            until = min(until, self.plain_tokens)
        return until, token_s

    def edges(self, first: int, last: int) -> list[tuple[int, float]]:
        """Token counts above `first`, which is no less than `plain_tokens`, and up to `last` that are the best of their
        kind, full buckets and where the slope changes, and what a pass with each takes."""
        if last <= first:
            return []
        shape, min_s, base_s = self.shape, self.min_s, self.base_s + self.block_s
        begin, end = bisect_right(shape.buckets, first), bisect_left(shape.buckets, last)
        edges = [(shape.buckets[i], max(min_s, base_s + shape.bucket_s[i])) for i in range(begin, end)]
        if end == len(shape.buckets):
            padded = shape.buckets[-1] if shape.buckets else 0
            starts = shape.starts
            begin, end = bisect_right(starts, max(first, padded)), bisect_left(starts, last)
            edges += [(start, self.seconds(start)) for start in starts[begin:end]]
        edges.append((last, self.seconds(last)))
        return edges
