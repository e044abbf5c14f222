"""One verifier's channel, as the drafter sees it: who is open on it, and whether what it says is allowed."""

from __future__ import annotations

from typing import NamedTuple

import torch

from dspine_cluster.errors import ChannelClosedError, ChannelError
from dspine_cluster.models.drafter_config import DrafterConfig
from dspine_cluster.transport.channel import Channel
from dspine_cluster.transport.messages import (
    Busy,
    Draft,
    FeatureBatch,
    Features,
    Int64Array,
    Message,
    Need,
    Open,
    Opened,
    Proposals,
)

NO_ROW = 0
"""Of nobody."""
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class RequestKey(NamedTuple):
    """A request at this drafter: uids are unique on one channel only."""

    client: int
    uid: int


class Client:
    """A channel and its open requests."""

    def __init__(self, number: int, channel: Channel, config: DrafterConfig) -> None:
        """Take over a channel.

        Raises:
            ChannelError: its features are of a dtype that this drafter does not know.
        """
        if channel.peer.features_dtype not in _DTYPES:
            raise ChannelError(f"features_dtype must be one of {', '.join(_DTYPES)}")
        self.number = number
        self.channel = channel
        self.features_dtype = _DTYPES[channel.peer.features_dtype]
        self._rows: dict[int, int] = {}  # by uid
        self._last_uids = b""
        self._last_rows: list[int] = []
        self._row_bytes = config.hidden_size * self.features_dtype.itemsize
        self._vocab_size = config.vocab_size

    def key(self, uid: int) -> RequestKey:
        return RequestKey(self.number, uid)

    @property
    def uids(self) -> list[int]:
        """Of the open requests."""
        return list(self._rows)

    def __contains__(self, uid: int) -> bool:
        return uid in self._rows

    def open(self, uid: int, row: int) -> None:
        """A request has this row in the loop's `ContextRows` now."""
        self._rows[uid] = row
        self._last_uids = b""

    def close(self, uid: int) -> int:
        """The request has left. Returns the row that it had."""
        self._last_uids = b""
        return self._rows.pop(uid)

    def rows_of(self, uids: Int64Array) -> list[int]:
        """The rows of requests, `NO_ROW` for those that are not open. One message after the other names the same."""
        named = uids.tobytes()
        if named != self._last_uids:
            find = self._rows.get
            self._last_uids, self._last_rows = named, [find(uid, NO_ROW) for uid in uids.tolist()]
        return self._last_rows

    def check(self, message: Message) -> None:
        """Check what depends on the model and on what is open; shapes and ranges are checked as it is decoded.

        Raises:
            ChannelError: the message breaks the protocol.
        """
        match message:
            case Open(uid=uid) if uid in self._rows:
                raise ChannelError(f"request {uid} was opened twice")
            case Features(rows=rows) | FeatureBatch(rows=rows) if rows.shape[1] != self._row_bytes:
                raise ChannelError(f"feature rows have {rows.shape[1]} bytes, not {self._row_bytes}")
            case Draft():
                if NO_ROW in self.rows_of(message.uids):
                    uids = message.uids.tolist()
                    raise ChannelError(f"drafts were asked for requests that are not open, of {uids}")
                if message.anchors.max() >= self._vocab_size:
                    raise ChannelError(f"anchor {message.anchors.max()} lies outside the vocabulary")
            case Proposals() | Need() | Busy() | Opened():
                raise ChannelError(f"a verifier does not send {type(message).__name__}")

    def send(self, message: Message) -> None:
        """Send a reply; one to a verifier that is gone is dropped, the next `receive` tells."""
        try:
            self.channel.send(message)
        except ChannelClosedError:
            return
