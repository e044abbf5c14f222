"""What a verifier and a drafter say to each other. Bulk travels as numpy arrays; nothing here is pickled.

What is asked and answered every round is in `round_messages`. What a side builds itself is right. What it receives from
another process is checked, and a channel treats what fails as a broken protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, TypeAlias

import numpy as np
from msgspec import Meta, Struct

from dspine_cluster.transport.columns import (
    MAX_POSITION,
    MAX_UID,
    Bounds,
    Float32Array,
    Float64Array,
    Int32Array,
    Int64Array,
    Said,
    UInt8Array,
    check,
    check_columns,
)
from dspine_cluster.transport.round_messages import (
    Busy,
    Draft,
    Proposals,
)

__all__ = [
    "FEATURES",
    "KEY_BYTES",
    "MAX_PAGE_KEYS",
    "PROTOCOL_VERSION",
    "Busy",
    "Close",
    "Draft",
    "FeatureBatch",
    "Features",
    "Float32Array",
    "Float64Array",
    "Hello",
    "Int32Array",
    "Int64Array",
    "Message",
    "Need",
    "Open",
    "Opened",
    "Proposals",
    "UInt8Array",
    "join_keys",
    "split_keys",
]

PROTOCOL_VERSION = 8
KEY_BYTES = 16
MAX_PAGE_KEYS = 1 << 15
"""Page keys in one message: those of half a million tokens."""

Uid: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_UID)]
Position: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_POSITION)]
Text: TypeAlias = Annotated[str, Meta(max_length=256)]
PageKeys: TypeAlias = Annotated[bytes, Meta(max_length=MAX_PAGE_KEYS * KEY_BYTES)]
"""Keys of consecutive full pages, 16 bytes each; see `core.page_hash`."""

_RUN_BOUNDS = Bounds.of(uids=(0, MAX_UID), starts=(0, MAX_POSITION), counts=(1, 2**31 - 1))
"""Of the rows of `FeatureBatch.runs`, in order."""


class Hello(Struct, frozen=True, forbid_unknown_fields=True, tag="hello"):
    """Who is speaking: the first message of each side, part of the handshake."""

    protocol: int
    role: Text
    """`verifier` or `drafter`."""
    target: Text
    """Fingerprint."""
    drafter: Text
    """Fingerprint."""
    tokenizer: Text
    """Fingerprint."""
    epoch: Text
    """Differs after every restart of the speaker."""
    features_dtype: Text = "float32"
    """dtype of the rows of `Features`, by its torch name; meant for the drafter."""


class Open(Said, frozen=True, forbid_unknown_fields=True, tag="open"):
    """A request attaches to the drafter, once more after a `Close` if it had given up its pages.

    On one channel a uid never names another request: what its `Close` has overtaken is still right.
    """

    uid: Uid
    page_keys: PageKeys = b""
    """Of the request's first pages."""
    attempt: Position = 0
    """Tells the times apart that a request attaches; `Opened` repeats it."""

    def check(self) -> None:
        _check_keys(self.page_keys)


class Opened(Said, frozen=True, forbid_unknown_fields=True, tag="opened"):
    """The drafter's answer to `Open`: what it has of the request's context already, so that it need not be sent."""

    uid: Uid
    attempt: Position
    ranges: Annotated[list[tuple[Position, Position]], Meta(max_length=MAX_PAGE_KEYS)]
    """Positions start <= position < end, ascending."""
    max_context_tokens: Annotated[int, Meta(ge=1, lt=2**40)]
    """How many of the newest positions the drafter keeps."""

    def check(self) -> None:
        edges = [edge for positions in self.ranges for edge in positions]
        check(all(a < b for a, b in pairwise(edges)), "ranges must be ascending and not empty")


class Features(Said, frozen=True, forbid_unknown_fields=True, tag="features", eq=False):
    """Features of the committed tokens at positions start .. start + count - 1, in any order of ranges."""

    uid: Uid
    start: Position
    rows: UInt8Array
    """uint8 [count, row_bytes]: the raw bytes of each row in `Hello.features_dtype`."""

    def check(self) -> None:
        check(self.rows.dtype == np.uint8, "rows must be uint8")
        check(self.rows.ndim == 2 and self.rows.size > 0, "rows must be [count, row_bytes] and not empty")

    @property
    def end(self) -> int:
        """First position after the rows."""
        return self.start + len(self.rows)

    @property
    def num_bytes(self) -> int:
        """What these rows cost in byte credits."""
        return self.rows.nbytes


class FeatureBatch(Said, frozen=True, forbid_unknown_fields=True, tag="feature_batch", eq=False):
    """`Features` of R requests at once, such as those that a round's drafts need. Never split."""

    runs: Int64Array
    """int64 [3, R]: the rows are what the properties give, in their order."""
    rows: UInt8Array
    """uint8 [sum of counts, row_bytes]: see `Features`."""

    def check(self) -> None:
        check_columns(self.runs, _RUN_BOUNDS, "runs")
        check(self.rows.dtype == np.uint8, "rows must be uint8")
        check(self.rows.ndim == 2 and self.rows.shape[1] > 0, "rows must be [count, row_bytes]")
        check(int(self.counts.sum()) == len(self.rows), "rows must be as many as counts say")

    @classmethod
    def of(
        cls,
        *,
        uids: Sequence[int] | Int64Array,
        starts: Sequence[int] | Int64Array,
        counts: Sequence[int] | Int64Array,
        rows: UInt8Array,
    ) -> FeatureBatch:
        """From columns; see the properties of these names."""
        return cls(np.array((uids, starts, counts), np.int64), rows)

    @property
    def uids(self) -> Int64Array:
        return self._row(0)

    @property
    def starts(self) -> Int64Array:
        """Position of the first row of each."""
        return self._row(1)

    @property
    def counts(self) -> Int64Array:
        """How many rows are of each, at least one."""
        return self._row(2)

    def _row(self, number: int) -> Int64Array:
        row: Int64Array = self.runs[number]
        return row

    @property
    def num_bytes(self) -> int:
        """What these rows cost in byte credits."""
        return self.rows.nbytes

    def parts(self) -> list[Features]:
        """The same, one message a request."""
        ends = self.counts.cumsum().tolist()
        return [
            Features(uid, start, self.rows[end - count : end])
            for uid, start, count, end in zip(
                self.uids.tolist(), self.starts.tolist(), self.counts.tolist(), ends, strict=True
            )
        ]


class Need(Said, frozen=True, forbid_unknown_fields=True, tag="need"):
    """The drafter cannot draft for `uid` before it has the features of positions start .. end - 1."""

    uid: Uid
    start: Position
    end: Position

    def check(self) -> None:
        check(self.start < self.end, "start must be below end")


class Close(Said, frozen=True, forbid_unknown_fields=True, tag="close"):
    """The request has left: the drafter frees its pages, or keeps for others those whose keys it knows."""

    uid: Uid
    page_keys: PageKeys = b""
    """Of the pages after those that `Open` named, as far as they were full."""

    def check(self) -> None:
        _check_keys(self.page_keys)


Message: TypeAlias = Open | Opened | Features | FeatureBatch | Draft | Proposals | Need | Busy | Close
"""Everything that travels after the handshake."""
FEATURES = (Features, FeatureBatch)
"""What byte credits are for."""


def join_keys(keys: Sequence[bytes]) -> bytes:
    """Page keys as they travel: the first `MAX_PAGE_KEYS` of them."""
    return b"".join(keys[:MAX_PAGE_KEYS])


def split_keys(joined: bytes) -> list[bytes]:
    """The keys of `join_keys`."""
    return [joined[start : start + KEY_BYTES] for start in range(0, len(joined), KEY_BYTES)]


def _check_keys(joined: bytes) -> None:
    check(len(joined) % KEY_BYTES == 0, "page_keys must be 16 bytes each")
    keys = split_keys(joined)
    check(len(set(keys)) == len(keys), "page_keys must differ")
