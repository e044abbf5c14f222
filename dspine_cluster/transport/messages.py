"""What a verifier and a drafter say to each other. Bulk travels as numpy arrays; nothing here is pickled.

A message that cannot be built (`ValueError`) cannot be received either: a channel treats it as a broken
protocol.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct

PROTOCOL_VERSION = 3
KEY_BYTES = 16
MAX_PAGE_KEYS = 1 << 15
"""Page keys in one message: those of half a million tokens."""

Uid: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Position: TypeAlias = Annotated[int, Meta(ge=0, lt=2**40)]
Text: TypeAlias = Annotated[str, Meta(max_length=256)]
PageKeys: TypeAlias = Annotated[bytes, Meta(max_length=MAX_PAGE_KEYS * KEY_BYTES)]
"""Keys of consecutive full pages, 16 bytes each; see `core.page_hash`."""

UInt8Array: TypeAlias = npt.NDArray[np.uint8]
Int32Array: TypeAlias = npt.NDArray[np.int32]
Int64Array: TypeAlias = npt.NDArray[np.int64]
Float32Array: TypeAlias = npt.NDArray[np.float32]


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


class Open(Struct, frozen=True, forbid_unknown_fields=True, tag="open"):
    """A request attaches to the drafter, once more after a `Close` if it had given up its pages.

    On one channel a uid never names another request: what its `Close` has overtaken is still right.
    """

    uid: Uid
    page_keys: PageKeys = b""
    """Of the request's first pages."""
    attempt: Position = 0
    """Tells the times apart that a request attaches; `Opened` repeats it."""

    def __post_init__(self) -> None:
        _check_keys(self.page_keys)


class Opened(Struct, frozen=True, forbid_unknown_fields=True, tag="opened"):
    """The drafter's answer to `Open`: what it has of the request's context already, so that it need not be sent."""

    uid: Uid
    attempt: Position
    ranges: Annotated[list[tuple[Position, Position]], Meta(max_length=MAX_PAGE_KEYS)]
    """Positions start <= position < end, ascending."""
    max_context_tokens: Annotated[int, Meta(ge=1, lt=2**40)]
    """How many of the newest positions the drafter keeps."""

    def __post_init__(self) -> None:
        edges = [edge for positions in self.ranges for edge in positions]
        _check(all(a < b for a, b in pairwise(edges)), "ranges must be ascending and not empty")


class Features(Struct, frozen=True, forbid_unknown_fields=True, tag="features", eq=False):
    """Features of the committed tokens at positions start .. start + count - 1, in any order of ranges."""

    uid: Uid
    start: Position
    rows: UInt8Array
    """uint8 [count, row_bytes]: the raw bytes of each row in `Hello.features_dtype`."""

    def __post_init__(self) -> None:
        _check(self.rows.dtype == np.uint8, "rows must be uint8")
        _check(self.rows.ndim == 2 and self.rows.size > 0, "rows must be [count, row_bytes] and not empty")

    @property
    def end(self) -> int:
        """First position after the rows."""
        return self.start + len(self.rows)

    @property
    def num_bytes(self) -> int:
        """What these rows cost in byte credits."""
        return self.rows.nbytes


class FeatureBatch(Struct, frozen=True, forbid_unknown_fields=True, tag="feature_batch", eq=False):
    """`Features` of R requests at once, such as those that a round's drafts need. Never split."""

    uids: Int64Array
    """int64 [R], not negative."""
    starts: Int64Array
    """int64 [R]: position of the first row of each."""
    counts: Int32Array
    """int32 [R]: how many rows are of each, at least one."""
    rows: UInt8Array
    """uint8 [sum of counts, row_bytes]: see `Features`."""

    def __post_init__(self) -> None:
        shape = self.uids.shape
        _check(len(shape) == 1 and shape[0] > 0, "uids must be [R] and not empty")
        _check(self.starts.shape == self.counts.shape == shape, "starts and counts must be [R]")
        _check(bool((self.counts > 0).all()), "counts must be positive")
        _check(bool((self.uids >= 0).all()), "uids must not be negative")
        _check(bool(((self.starts >= 0) & (self.starts < 2**40)).all()), "starts must lie in [0, 2**40)")
        _check(self.rows.dtype == np.uint8, "rows must be uint8")
        _check(self.rows.ndim == 2 and self.rows.shape[1] > 0, "rows must be [count, row_bytes]")
        _check(int(self.counts.sum()) == len(self.rows), "rows must be as many as counts say")

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


class DraftItem(Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """One request's block to draft."""

    uid: Uid
    round: Position
    """Number of the round; `Proposals` repeats it."""
    anchor: Annotated[int, Meta(ge=0, lt=2**31)]
    """Token id."""
    position: Position
    """Absolute position n of the anchor; the context is positions 0 .. n - 1, or a suffix of them."""
    num_proposals: Annotated[int, Meta(ge=1, le=4096)]
    temperature: float
    """0 is greedy."""
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None
    output_index: Position
    """Output position of the first proposal; with `seed` it fixes the noise."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < math.inf:
            raise ValueError("temperature must be finite and >= 0")


class Draft(Struct, frozen=True, forbid_unknown_fields=True, tag="draft"):
    """Draft these blocks, all of one round of the sender's batch."""

    items: Annotated[list[DraftItem], Meta(min_length=1, max_length=65536)]


class Proposals(Struct, frozen=True, forbid_unknown_fields=True, tag="proposals", eq=False):
    """Drafted blocks of R requests: P proposals each, with the K numbers each was drawn from."""

    uids: list[Uid]
    rounds: list[Position]
    tokens: Int32Array
    """int32 [R, P]."""
    candidates: Int32Array | None
    """int32 [R, P, K]; None when every request is greedy."""
    probs: Float32Array | None
    """float32 [R, P, K]: q, the proposal distribution over `candidates`; None with them."""
    confidence: Float32Array
    """float32 [R, P]: the largest untempered probability of the row that each proposal was drawn from, which is a
    function of the proposals before it."""
    draft_s: float
    """Seconds that the draft took, waiting not included."""

    def __post_init__(self) -> None:
        R = len(self.uids)
        _check(len(self.rounds) == R, "rounds must be as many as uids")
        _check(self.tokens.dtype == np.int32, "tokens must be int32")
        _check(self.confidence.dtype == np.float32, "confidence must be float32")
        _check(self.tokens.ndim == 2 and self.tokens.shape[0] == R, "tokens must be [R, P]")
        _check(self.confidence.shape == self.tokens.shape, "confidence must be [R, P]")
        _check(_is_probability(self.confidence), "confidence must lie in [0, 1]")
        _check((self.candidates is None) == (self.probs is None), "candidates and probs come together")
        if self.candidates is not None and self.probs is not None:
            _check(self.candidates.dtype == np.int32, "candidates must be int32")
            _check(self.probs.dtype == np.float32, "probs must be float32")
            _check(
                self.candidates.ndim == 3 and self.candidates.shape[:2] == self.tokens.shape,
                "candidates must be [R, P, K]",
            )
            _check(self.probs.shape == self.candidates.shape, "probs must be [R, P, K]")
            _check(_is_probability(self.probs), "probs must lie in [0, 1]")
        _check(math.isfinite(self.draft_s) and self.draft_s >= 0.0, "draft_s must be finite and >= 0")


class Need(Struct, frozen=True, forbid_unknown_fields=True, tag="need"):
    """The drafter cannot draft for `uid` before it has the features of positions start .. end - 1."""

    uid: Uid
    start: Position
    end: Position

    def __post_init__(self) -> None:
        _check(self.start < self.end, "start must be below end")


class Busy(Struct, frozen=True, forbid_unknown_fields=True, tag="busy"):
    """The drafter is overloaded: no draft for these requests in these rounds."""

    uids: list[Uid]
    rounds: list[Position]

    def __post_init__(self) -> None:
        _check(len(self.uids) == len(self.rounds), "rounds must be as many as uids")


class Close(Struct, frozen=True, forbid_unknown_fields=True, tag="close"):
    """The request has left: the drafter frees its pages, or keeps for others those whose keys it knows."""

    uid: Uid
    page_keys: PageKeys = b""
    """Of the pages after those that `Open` named, as far as they were full."""

    def __post_init__(self) -> None:
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
    _check(len(joined) % KEY_BYTES == 0, "page_keys must be 16 bytes each")
    keys = split_keys(joined)
    _check(len(set(keys)) == len(keys), "page_keys must differ")


def _is_probability(values: Float32Array) -> bool:
    return bool(((values >= 0.0) & (values <= 1.0 + 1e-4)).all())


def _check(condition: bool, rule: str) -> None:
    if not condition:
        raise ValueError(rule)
