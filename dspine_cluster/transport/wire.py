"""Messages as frames of bytes: three numbers, a msgpack header, then the arrays' raw bytes in header order, unless
these lie in memory that both sides share.

In the header an array is its shape; its dtype is the one its field declares. Everything is checked against
limits before memory is given, and whatever is malformed raises `ChannelError`.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any, TypeAlias, get_args

import msgspec
import numpy as np

from dspine_cluster.errors import ChannelError
from dspine_cluster.transport.channel import ChannelLimits
from dspine_cluster.transport.messages import Message, UInt8Array
from dspine_cluster.transport.shared_ring import RingReader, RingWriter

assert sys.byteorder == "little", "arrays travel in little-endian order"

Buffer: TypeAlias = "bytes | memoryview"

_PREFIX = struct.Struct("<IIQ")
"""Bytes of the header, bytes of all arrays, and where in the ring these begin, plus 1: 0 where they follow the header;
see `shared_ring`. A `Credit` is a prefix alone, whose third number is its own plus 1."""
_MAX_DIM = 1 << 24
_NOTHING: UInt8Array = np.empty(0, np.uint8)


class Credit(msgspec.Struct, frozen=True):
    """The receiver has taken `Features` with this many bytes of rows: the sender may send as many again."""

    num_bytes: int


Frame: TypeAlias = Message | Credit


class Encoder:
    """Turns frames into buffers that refer to the arrays, without copying them. For one thread at a time."""

    def __init__(self) -> None:
        self._arrays: list[memoryview] = []
        self._msgpack = msgspec.msgpack.Encoder(enc_hook=self._take_array)

    def encode(self, frame: Frame, limits: ChannelLimits, ring: RingWriter | None = None) -> list[Buffer]:
        """Buffers to be sent one after the other. The arrays' bytes go into the ring if there is one with room.

        Raises:
            ValueError: the frame exceeds a limit.
            ChannelError: the peer has broken the ring.
        """
        if isinstance(frame, Credit):
            return [_PREFIX.pack(0, 0, frame.num_bytes + 1)]
        header = self._msgpack.encode(frame)
        arrays, self._arrays = self._arrays, []
        payload_bytes = sum([view.nbytes for view in arrays])
        if len(header) > limits.max_header_bytes or payload_bytes > limits.max_payload_bytes:
            raise ValueError(
                f"{type(frame).__name__} with {len(header)} + {payload_bytes} bytes exceeds the limits"
            )
        start = None if ring is None else ring.write(arrays, payload_bytes)
        if start is None:
            return [_PREFIX.pack(len(header), payload_bytes, 0) + header, *arrays]
        return [_PREFIX.pack(len(header), payload_bytes, start + 1) + header]

    def _take_array(self, value: Any) -> list[int]:
        assert isinstance(value, np.ndarray), f"{type(value)} cannot travel"
        if value.size:
            self._arrays.append(np.ascontiguousarray(value).data.cast("B"))
        return list(value.shape)


class Decoder:
    """Turns received bytes into frames. The reader writes into `buffer()`, then tells `advance` how much.

    Small frames share one buffer, so that many come with one read; the rest of a larger one is read in place.
    """

    def __init__(
        self, *, max_header_bytes: int, max_payload_bytes: int, ring: RingReader | None = None
    ) -> None:
        self._ring = ring
        self._max_header_bytes = max_header_bytes
        self._max_payload_bytes = max_payload_bytes
        self._msgpack = msgspec.msgpack.Decoder(Message, dec_hook=self._give_array)
        self._shared = memoryview(bytearray(_PREFIX.size + max_header_bytes))
        self._num_shared = 0
        """Bytes of the stream that wait in the shared buffer: less than prefix and header of one frame."""
        self._header = b""
        self._payload: UInt8Array = _NOTHING
        self._num_payload = 0
        """Bytes of `_payload` that have arrived."""
        self._payload_used = 0
        self._place = 0
        """The prefix' third number."""

    @property
    def is_between_frames(self) -> bool:
        return self._num_shared == 0 and self._num_payload == self._payload.size

    def drop_ring(self) -> None:
        """Let go of the shared memory: no frame comes any more."""
        self._ring = None

    def buffer(self) -> memoryview:
        """Where the next bytes of the stream belong; never empty."""
        if self._num_payload < self._payload.size:
            return self._payload.data[self._num_payload :]
        return self._shared[self._num_shared :]

    def advance(self, num_bytes: int) -> Iterator[tuple[Frame, int]]:
        """Account for bytes written to `buffer()`: the frames that they complete, each with its size in bytes.
        Take them all before the next `buffer()`.

        Raises:
            ChannelError: a frame is malformed or exceeds a limit; the stream cannot be read any further.
        """
        if self._num_payload < self._payload.size:
            self._num_payload += num_bytes
            if self._num_payload == self._payload.size:
                yield self._finish()
            return
        end = self._num_shared + num_bytes
        start = 0
        while (body := self._start_frame(start, end)) is not None:
            start = body
            if not self._place:
                self._num_payload = min(self._payload.size, end - body)
                self._payload[: self._num_payload] = self._shared[body : body + self._num_payload]
                start += self._num_payload
                if self._num_payload < self._payload.size:
                    break
            yield self._finish()
        self._shared[: end - start] = bytes(self._shared[start:end])
        self._num_shared = end - start

    def _start_frame(self, start: int, end: int) -> int | None:
        """Take prefix and header that lie at `start`, and give where they end; None if incomplete."""
        if end - start < _PREFIX.size:
            return None
        header_bytes, payload_bytes, place = _PREFIX.unpack_from(self._shared, start)
        is_credit = place and not (header_bytes or payload_bytes)
        is_message = 0 < header_bytes <= self._max_header_bytes and payload_bytes <= self._max_payload_bytes
        if not (is_message or is_credit):
            raise ChannelError(
                f"the peer sent a frame beyond the limits: {header_bytes} + {payload_bytes} bytes"
            )
        body = start + _PREFIX.size + int(header_bytes)
        if body > end:
            return None
        self._header = bytes(self._shared[start + _PREFIX.size : body])
        self._place = place
        if is_credit:
            self._payload = _NOTHING
        elif not place:
            self._payload = np.empty(payload_bytes, np.uint8)
        elif self._ring is None:
            raise ChannelError("the peer sent through shared memory what it may not")
        else:
            self._payload = self._ring.take(place - 1, payload_bytes)
            self._num_payload = payload_bytes
        return body

    def _finish(self) -> tuple[Frame, int]:
        frame = self._decode() if self._header else Credit(self._place - 1)
        num_bytes = _PREFIX.size + len(self._header) + self._payload.size
        # Shared memory is the sender's again once nobody has it.
        self._payload, self._num_payload = _NOTHING, 0
        return frame, num_bytes

    def _decode(self) -> Message:
        self._payload_used = 0
        try:
            message: Message = self._msgpack.decode(self._header)
            message.check()
        except (ValueError, TypeError, RecursionError) as error:
            raise ChannelError(f"the peer sent a malformed message: {error}") from error
        if self._payload_used != self._payload.size:
            raise ChannelError("the peer sent a message with more bytes than its arrays have")
        return message

    def _give_array(self, kind: Any, shape: Any) -> Any:
        if not isinstance(shape, list) or len(shape) > 3:
            raise ValueError("an array's shape must be a list of at most 3 numbers")
        dtype = _dtype_of(kind)
        num_bytes = dtype.itemsize
        for dim in shape:
            if type(dim) is not int or not 0 <= dim <= _MAX_DIM:
                raise ValueError("an array's shape is out of range")
            num_bytes *= dim
        start = self._payload_used
        end = start + num_bytes
        if end > self._payload.size:
            raise ValueError("an array has more elements than there are bytes")
        self._payload_used = end
        array = np.ndarray(shape, dtype, self._payload, start)
        # The sender can change what it shares after it was checked. Features may be any numbers, but nothing else may.
        return array.copy() if self._place and dtype != np.uint8 else array


@cache
def _dtype_of(kind: Any) -> np.dtype[Any]:
    """The dtype that an array type names."""
    dtype: np.dtype[Any] = np.dtype(get_args(get_args(kind)[1])[0])
    return dtype
