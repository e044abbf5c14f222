"""Frames: every message survives the wire, and nothing malformed does more than raise."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from dspine_cluster.core.survival import NUM_BINS
from dspine_cluster.errors import ChannelError
from dspine_cluster.transport.channel import ChannelLimits
from dspine_cluster.transport.messages import (
    Busy,
    Close,
    Draft,
    FeatureBatch,
    Features,
    Int64Array,
    Message,
    Need,
    Open,
    Opened,
    Proposals,
    join_keys,
)
from dspine_cluster.transport.wire import Credit, Decoder, Encoder, Frame

LIMITS = ChannelLimits()

uids = st.integers(0, 2**63 - 1)
positions = st.integers(0, 2**40 - 1)


def columns_of(elements: st.SearchStrategy[int], length: int) -> st.SearchStrategy[Int64Array]:
    return npst.arrays(np.int64, length, elements=elements)


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    R = draw(st.integers(1, 4))
    return Draft.of(
        uids=draw(columns_of(uids, R)),
        rounds=draw(columns_of(positions, R)),
        anchors=draw(columns_of(st.integers(0, 2**31 - 1), R)),
        positions=draw(columns_of(positions, R)),
        num_proposals=draw(columns_of(st.integers(1, 16), R)),
        output_indices=draw(columns_of(positions, R)),
        seeds=draw(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), min_size=R, max_size=R)),
        temperatures=draw(npst.arrays(np.float64, R, elements=st.floats(0, 100))),
    )


@st.composite
def busy(draw: st.DrawFn) -> Busy:
    R = draw(st.integers(1, 3))
    return Busy(np.array([draw(columns_of(values, R)) for values in (uids, positions)]))


@st.composite
def proposals(draw: st.DrawFn) -> Proposals:
    R, P, K = draw(st.integers(1, 4)), draw(st.integers(0, 15)), draw(st.integers(0, 16))
    probabilities = st.floats(0, 1, width=32)
    ids = st.integers(0, 2**31 - 1)
    numbers = np.array([draw(columns_of(values, R)) for values in (uids, positions, st.integers(0, 1))])
    S = int(numbers[2].sum())
    return Proposals(
        numbers,
        draw(npst.arrays(np.int32, (R, P), elements=ids)),
        draw(npst.arrays(np.int32, (S, P, K), elements=ids)),
        draw(npst.arrays(np.float32, (S, P, K), elements=probabilities)),
        draw(npst.arrays(np.int8, (R, P), elements=st.integers(0, NUM_BINS - 1))),
        draw(st.floats(0, 100)),
    )


@st.composite
def feature_batches(draw: st.DrawFn) -> FeatureBatch:
    R = draw(st.integers(1, 4))
    counts = draw(columns_of(st.integers(1, 5), R))
    shape = st.tuples(st.just(int(counts.sum())), st.integers(1, 9))
    return FeatureBatch.of(
        uids=draw(columns_of(uids, R)),
        starts=draw(columns_of(positions, R)),
        counts=counts,
        rows=draw(npst.arrays(np.uint8, shape)),
    )


page_keys = st.lists(st.binary(min_size=16, max_size=16), max_size=4, unique=True).map(join_keys)
ranges = st.lists(positions, max_size=6, unique=True).map(
    lambda edges: list(zip(sorted(edges)[::2], sorted(edges)[1::2], strict=False))
)
frames: st.SearchStrategy[Frame] = st.one_of(
    st.builds(Open, uids, page_keys, positions),
    st.builds(Opened, uids, positions, ranges, st.integers(1, 2**40 - 1)),
    st.builds(Close, uids, page_keys),
    st.builds(
        Features, uids, positions, npst.arrays(np.uint8, st.tuples(st.integers(1, 5), st.integers(1, 9)))
    ),
    feature_batches(),
    drafts(),
    proposals(),
    st.integers(0, 1000).flatmap(
        lambda start: st.builds(Need, uids, st.just(start), st.integers(start + 1, 2000))
    ),
    busy(),
    st.builds(Credit, uids),
)


def as_bytes(frame: Frame) -> bytes:
    return b"".join(Encoder().encode(frame, LIMITS))


def small_decoder() -> Decoder:
    return Decoder(max_header_bytes=4096, max_payload_bytes=4096)


def feed(decoder: Decoder, data: bytes, piece_bytes: int = 1 << 20) -> list[Frame]:
    """What the decoder makes of a stream that arrives in pieces."""
    decoded: list[Frame] = []
    while data:
        view = decoder.buffer()
        num_bytes = min(len(view), piece_bytes, len(data))
        view[:num_bytes] = data[:num_bytes]
        data = data[num_bytes:]
        decoded += [frame for frame, _ in decoder.advance(num_bytes)]
    return decoded


def is_equal(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray):
        return isinstance(right, np.ndarray) and left.dtype == right.dtype and np.array_equal(left, right)
    if isinstance(left, msgspec.Struct):
        names = left.__struct_fields__
        return type(left) is type(right) and all(is_equal(getattr(left, n), getattr(right, n)) for n in names)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(is_equal, left, right))
    return bool(left == right)


@given(st.lists(frames, max_size=4), st.integers(1, 100))
@settings(deadline=None)
def test_every_frame_survives_the_wire_however_it_is_cut(sent: list[Frame], piece_bytes: int) -> None:
    decoder = Decoder(max_header_bytes=1 << 20, max_payload_bytes=1 << 20)
    received = feed(decoder, b"".join(map(as_bytes, sent)), piece_bytes)
    assert is_equal(sent, received)
    assert decoder.is_between_frames


@given(st.binary(max_size=300))
def test_random_bytes_only_ever_raise_a_channel_error(data: bytes) -> None:
    with contextlib.suppress(ChannelError):
        feed(small_decoder(), data)


@given(st.binary(min_size=1, max_size=200), st.binary(max_size=64))
def test_a_random_header_only_ever_raises_a_channel_error(header: bytes, payload: bytes) -> None:
    with contextlib.suppress(ChannelError):
        feed(small_decoder(), struct.pack("<IIQ", len(header), len(payload), 0) + header + payload)


@given(frames, st.data())
@settings(deadline=None)
def test_a_damaged_frame_is_read_as_something_valid_or_raises_a_channel_error(
    frame: Frame, data: st.DataObject
) -> None:
    damaged = bytearray(as_bytes(frame))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ChannelError):
        feed(small_decoder(), bytes(damaged))


@given(drafts() | busy() | proposals() | feature_batches(), st.data())
@settings(deadline=None)
def test_any_numbers_in_the_columns_of_a_round_are_within_bounds_or_a_channel_error(
    frame: Frame, data: st.DataObject
) -> None:
    whole = as_bytes(frame)
    header_bytes, payload_bytes, _ = struct.unpack_from("<IIQ", whole)
    columns = data.draw(st.binary(min_size=payload_bytes, max_size=payload_bytes))
    try:
        (decoded,) = feed(small_decoder(), whole[: 16 + header_bytes] + columns)
    except ChannelError:
        return
    if isinstance(decoded, Draft):
        assert (decoded.num_proposals >= 1).all()
        assert (decoded.anchors < 2**31).all()
        assert np.isfinite(decoded.temperatures).all()
        assert (decoded.numbers[:7] >= 0).all()
    elif isinstance(decoded, FeatureBatch):
        assert (decoded.uids >= 0).all()
        assert ((decoded.starts >= 0) & (decoded.starts < 2**40)).all()
        assert (decoded.counts >= 1).all()
        assert sum(decoded.counts.tolist()) == len(decoded.rows)
    elif isinstance(decoded, Busy | Proposals):
        assert len(decoded.uids) == len(decoded.rounds)
        assert (decoded.uids >= 0).all()
        assert ((decoded.rounds >= 0) & (decoded.rounds < 2**40)).all()
    if isinstance(decoded, Proposals):
        assert ((decoded.bins >= 0) & (decoded.bins < NUM_BINS)).all()
        assert (decoded.probs >= 0).all()
        assert np.count_nonzero(decoded.is_sampled) == len(decoded.candidates) == len(decoded.probs)


def test_what_was_decoded_lies_in_the_bytes_that_came() -> None:
    (decoded,) = feed(small_decoder(), as_bytes(Busy(np.array([[1, 2], [3, 4]]))))
    assert isinstance(decoded, Busy)
    assert decoded.uids.base is not None
    assert np.shares_memory(decoded.uids.base, decoded.rounds.base)


def frame_of(header: object, payload: bytes = b"") -> bytes:
    packed = msgspec.msgpack.encode(header)
    return struct.pack("<IIQ", len(packed), len(payload), 0) + packed + payload


FEATURES: dict[str, Any] = {"type": "features", "uid": 1, "start": 0}


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<IIQ", 0, 0, 0),
        struct.pack("<IIQ", 0, 5, 1) + bytes(5),
        struct.pack("<IIQ", 5000, 0, 0),
        struct.pack("<IIQ", 10, 5000, 0),
        frame_of({"type": "unknown"}),
        frame_of({"type": "close"}),
        frame_of({"type": "close", "uid": "1"}),
        frame_of({"type": "close", "uid": -1}),
        frame_of({"type": "close", "uid": 1, "more": 1}),
        frame_of({"type": "close", "uid": 1}, b"more"),
        frame_of({"type": "draft", "numbers": [8, 0], "temperatures": [0]}),
        frame_of({"type": "draft", "numbers": [8, 1], "temperatures": [1]}, bytes(64)),
        frame_of({"type": "draft", "numbers": [9, 1], "temperatures": [0]}, bytes(72)),
        frame_of({"type": "draft", "numbers": [8, 1], "temperatures": [1]}, bytes(72)),
        frame_of({"type": "draft", "numbers": [8, 1], "temperatures": [1]}, b"\xff" * 72),
        frame_of({"type": "busy", "uids": [1], "rounds": [1]}, b"\xff" * 16),
        frame_of({"type": "busy", "uids": [1], "rounds": [0]}, bytes(8)),
        frame_of({**FEATURES, "rows": [2, 3]}, b"12345"),
        frame_of({**FEATURES, "rows": [2, 3]}, b"1234567"),
        frame_of({**FEATURES, "rows": [2**62, 2**62]}, b"12345"),
        frame_of({**FEATURES, "rows": [2, -3]}, b"123456"),
        frame_of({**FEATURES, "rows": [2, True]}, b"12"),
        frame_of({**FEATURES, "rows": [6]}, b"123456"),
        frame_of({**FEATURES, "rows": 6}, b"123456"),
        frame_of({**FEATURES, "rows": [1, 1, 1, 1]}, b"1"),
        struct.pack("<IIQ", 4000, 0, 0) + b"\x91" * 4000,
    ],
)
def test_a_malformed_frame_is_a_channel_error(data: bytes) -> None:
    with pytest.raises(ChannelError):
        feed(small_decoder(), data)


def test_lengths_are_refused_before_anything_is_allocated() -> None:
    decoder = small_decoder()
    with pytest.raises(ChannelError, match="beyond the limits"):
        feed(decoder, struct.pack("<IIQ", 16, 2**32 - 1, 0))


def test_a_message_beyond_the_limits_is_not_encoded() -> None:
    message: Message = Features(1, 0, np.zeros((100, 100), np.uint8))
    with pytest.raises(ValueError, match="exceeds the limits"):
        Encoder().encode(message, ChannelLimits(max_payload_bytes=9999))


def test_encoding_refers_to_the_arrays_without_copying_them() -> None:
    rows = np.zeros((4, 4), np.uint8)
    buffers = Encoder().encode(Features(1, 0, rows), LIMITS)
    rows[0, 0] = 7
    assert bytes(buffers[1])[0] == 7
