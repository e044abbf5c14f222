"""Which sizes a pass over blocks is padded to, so that what was recorded for one pass serves others."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

_TOKEN_SIZES = (4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Steps of at most a half above what was asked for, and never fewer rows than matrix products are padded to."""
_MIN_TABLE_PAGES = 128
"""2,048 tokens. Wider tables double, and each width is recorded of its own."""


class GraphBucket(NamedTuple):
    """The sizes of a padded pass."""

    num_requests: int
    """Those beyond the pass's own have no tokens."""
    num_tokens: int
    """Rows beyond the pass's own belong to no request."""
    max_width: int
    """Tokens of one request at most: 1 where all decode plainly."""
    replays: bool
    """Whether requests may have accepted proposals that their states have not seen."""


class GraphBuckets:
    """The buckets of an engine."""

    def __init__(self, max_requests: int, block_size: int) -> None:
        """Passes of up to `max_requests` requests with up to `block_size` tokens each have a bucket, if they have no
        more tokens than the largest size."""
        assert max_requests > 0
        assert block_size > 0
        self._block_size = block_size
        self._request_sizes = _doubling(max_requests)
        wanted = max_requests * block_size
        last = bisect_left(_TOKEN_SIZES, wanted)
        self.token_sizes: tuple[int, ...] = _TOKEN_SIZES[: last + 1]
        """To what the tokens of a pass are padded, ascending; what `PassCost` takes as its buckets."""

    @property
    def max_requests(self) -> int:
        return self._request_sizes[-1]

    def bucket_of(self, widths: Sequence[int], *, replays: bool) -> GraphBucket | None:
        """The smallest bucket for blocks of `widths` tokens; None if none is large enough, or there is no block.

        `replays`: whether any of the requests has accepted proposals to be replayed.
        """
        num_tokens, width = sum(widths), max(widths, default=0)
        if not 0 < width <= self._block_size or len(widths) > self.max_requests:
            return None
        if num_tokens > self.token_sizes[-1]:
            return None
        return GraphBucket(
            num_requests=_at_least(self._request_sizes, len(widths)),
            num_tokens=_at_least(self.token_sizes, num_tokens),
            max_width=1 if width == 1 else self._block_size,
            replays=replays or width > 1,
        )

    def common(self) -> list[GraphBucket]:
        """The buckets of plain decoding and of whole blocks, largest first: later ones reuse the memory of earlier."""
        found: dict[GraphBucket, None] = {}
        for num_requests in reversed(self._request_sizes):
            for width in (self._block_size, 1):
                bucket = self.bucket_of([width] * num_requests, replays=False)
                if bucket is not None:
                    found[bucket] = None
        return list(found)


def _doubling(last: int) -> tuple[int, ...]:
    sizes = [1]
    while sizes[-1] < last:
        sizes.append(min(2 * sizes[-1], last))
    return tuple(sizes)


def _at_least(sizes: Sequence[int], wanted: int) -> int:
    return sizes[bisect_left(sizes, wanted)]


def table_pages(num_pages: int) -> int:
    """How wide the page table of a recorded pass is made for requests of up to `num_pages` pages."""
    return max(_MIN_TABLE_PAGES, 1 << max(0, num_pages - 1).bit_length())
