"""Which features go to a drafter in a step: new ones at once, old ones within a budget, so that no step grows long."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import sub
from typing import Protocol

import numpy as np

from dspine_cluster.core.session import Session
from dspine_cluster.transport.channel import Channel
from dspine_cluster.transport.messages import FeatureBatch, Features, Int64Array, UInt8Array
from dspine_cluster.verifier.asks import Asks
from dspine_cluster.verifier.attachments import UNSETTLED, Attachment

_MESSAGE_TOKENS = 512
"""Positions in one message at most: bounds what is read from the device at once."""
_MESSAGE_BYTES = 4 << 20
"""More positions than that may be in a message of all requests if they are not more bytes."""


class FeatureSource(Protocol):
    """What passes have left behind."""

    def features_start(self, session: Session, end: int) -> int:
        """The first position from which on features of all positions before `end` were computed."""
        ...

    def read_features(
        self, sessions: Sequence[Session], starts: Int64Array, counts: Int64Array
    ) -> UInt8Array:
        """Raw feature rows of positions start .. start + count - 1 of each session, one after the other: uint8
        `[num_rows, row_bytes]`."""
        ...


@dataclass(slots=True)
class _Batch:
    """New features for one drafter that travel together: in columns, a row for each request."""

    channel: Channel
    room_tokens: int
    """How many more it takes now."""
    attachments: list[Attachment] = field(default_factory=list)
    uids: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    """The first position of each."""
    counts: list[int] = field(default_factory=list)
    """How many positions, one after the other."""
    num_tokens: int = 0

    def add(
        self,
        attachments: Sequence[Attachment],
        uids: Sequence[int],
        starts: Sequence[int],
        counts: Sequence[int],
        num_tokens: int,
    ) -> None:
        """Rows that are `num_tokens` positions together."""
        self.attachments += attachments
        self.uids += uids
        self.starts += starts
        self.counts += counts
        self.num_tokens += num_tokens
        self.room_tokens -= num_tokens

    def take(self) -> tuple[list[Attachment], list[int], list[int], list[int]]:
        """The columns; none are left."""
        taken = self.attachments, self.uids, self.starts, self.counts
        self.attachments, self.uids, self.starts, self.counts, self.num_tokens = [], [], [], [], 0
        return taken


class FeatureSender:
    """Sends each position once. `start_step` renews the budget that all attachments share.

    What the last pass computed costs nothing of it: a step that computes much may send much. Features of earlier
    passes, of a request that attaches or whose drafter has lost them, are sent newest first: what a drafter needs to
    begin with ahead of everything else, the rest behind it. Where passes left features out, a drafter gets those after
    the gap.

    What sends raises ChannelClosedError if the drafter is gone.
    """

    def __init__(
        self, source: FeatureSource, *, row_bytes: int, attach_tokens: int, repair_bytes_per_step: int
    ) -> None:
        self._source = source
        self._row_bytes = row_bytes
        self._batch_tokens = max(_MESSAGE_TOKENS, _MESSAGE_BYTES // max(1, row_bytes))
        self._attach_tokens = attach_tokens
        self._most_new_tokens = min(attach_tokens, _MESSAGE_TOKENS)
        self._repair_bytes_per_step = repair_bytes_per_step
        self.budget_bytes = repair_bytes_per_step
        """What is left for this step."""

    def start_step(self) -> None:
        self.budget_bytes = self._repair_bytes_per_step

    def spend(self, num_bytes: int) -> None:
        """Something else was sent that a step must not have too much of."""
        self.budget_bytes -= num_bytes

    def send_tails(self, asks: Asks) -> bool:
        """Send what drafts at the present anchors need: the last features before them. New ones travel together.
        Returns whether all the requests are steady still: those whose features found no room are not."""
        channel, attachments = asks.link.channel, asks.attachments
        batch = _Batch(channel, channel.free_credit_bytes // self._row_bytes)
        starts = [attachment.sent_to for attachment in attachments]
        steady = asks
        others: list[Attachment] = []
        if UNSETTLED in starts:
            steady = asks.part([start != UNSETTLED for start in starts])
            starts = [start for start in starts if start != UNSETTLED]
            others = [attachment for attachment in attachments if not attachment.is_steady]
        if starts and not self._gather_new(batch, steady, starts):
            others = [*attachments]
        for attachment in others:
            self._send_tail(batch, attachment)
        return self._send_batch(batch) and not others

    def has_tail(self, attachment: Attachment) -> bool:
        """Whether nothing is missing of what `send_tails` was to send, and that was something."""
        start, end = attachment.tail
        return (start < end or not end) and attachment.has(start, end)

    def send_rest(self, attachment: Attachment) -> None:
        """Send the other features that the drafter would keep, so that everything else may overtake them."""
        end = attachment.session.num_computed
        attachment.features_from = self._source.features_start(attachment.session, end)
        oldest = attachment.oldest_position
        if attachment.sent.missing_after(oldest, end) == end:
            attachment.fresh_start = end
            return
        fresh = max(oldest, attachment.fresh_start)
        self._send(attachment, fresh, end, attachment.link.spare_bytes, bulk=True)
        if attachment.has(fresh, end):
            attachment.fresh_start = end
        if attachment.is_answered:
            self._send_paced(attachment, oldest, min(fresh, end), bulk=True)

    def _gather_new(self, batch: _Batch, steady: Asks, starts: Sequence[int]) -> bool:
        """Add what the last pass computed of requests that lack nothing else, from `starts` on; False if that has no
        room."""
        counts = list(map(sub, steady.positions, starts))
        num_tokens = sum(counts)
        if num_tokens > min(batch.room_tokens, self._batch_tokens) or not (
            0 < min(counts) <= max(counts) <= self._most_new_tokens
        ):
            return False
        batch.add(steady.attachments, steady.uids, starts, counts, num_tokens)
        return True

    def _send_tail(self, batch: _Batch, attachment: Attachment) -> None:
        """Send what a draft at the anchor needs, new features with the batch."""
        attachment.unsettle()
        start, end = attachment.tail = self._tail(attachment)
        fresh = attachment.fresh_start
        first = attachment.sent.missing_after(start, end)
        if first is not None and first >= min(fresh, end):
            if first < end:
                self._gather(batch, attachment, first, end)
            return
        self._send(attachment, max(start, fresh), end, sys.maxsize)
        if attachment.is_answered:
            self._send_paced(attachment, start, min(fresh, end), bulk=False)

    def _gather(self, batch: _Batch, attachment: Attachment, start: int, end: int) -> None:
        """Have positions start .. end - 1 sent together with those of other requests."""
        num_tokens = min(end - start, batch.room_tokens, _MESSAGE_TOKENS)
        if num_tokens <= 0:
            return
        if batch.num_tokens + num_tokens > self._batch_tokens:
            self._send_batch(batch)
        batch.add([attachment], [attachment.session.uid], [end - num_tokens], [num_tokens], num_tokens)

    def _send_batch(self, batch: _Batch) -> bool:
        """Send what was gathered, if the channel takes it, and begin anew. Returns whether nothing is left over."""
        attachments, uids, starts, counts = batch.take()
        if not attachments:
            return True
        runs = np.array((uids, starts, counts), np.int64)
        rows = self._source.read_features([x.session for x in attachments], runs[1], runs[2])
        is_one = len(uids) == 1
        message = Features(uids[0], starts[0], rows) if is_one else FeatureBatch(runs, rows)
        is_sent = batch.channel.send(message)
        for attachment, start, count in zip(attachments, starts, counts, strict=True):
            if not is_sent:
                attachment.unsettle()
                attachment.tail = start, start + count
            elif attachment.sent_to != UNSETTLED:
                attachment.sent_to = start + count
            else:
                attachment.sent.add(start, start + count)
        return is_sent

    def _tail(self, attachment: Attachment) -> tuple[int, int]:
        """The positions, start and end, that a draft at the anchor needs."""
        end = len(attachment.session.tokens) - 1
        attachment.features_from = start = self._source.features_start(attachment.session, end)
        num_tokens = min(self._attach_tokens, end - start)
        if attachment.max_context_tokens is not None and attachment.max_context_tokens < num_tokens:
            num_tokens = attachment.max_context_tokens
        return end - num_tokens, end

    def _send_paced(self, attachment: Attachment, start: int, end: int, *, bulk: bool) -> None:
        max_bytes = min(self.budget_bytes, attachment.link.spare_bytes)
        self.budget_bytes -= self._send(attachment, start, end, max_bytes, bulk=bulk)

    def _send(
        self, attachment: Attachment, start: int, end: int, max_bytes: int, *, bulk: bool = False
    ) -> int:
        """Send what is missing of positions start .. end - 1, newest first, as far as `max_bytes` and the channel
        allow; returns the bytes sent."""
        session, channel = attachment.session, attachment.link.channel
        num_bytes = 0
        while (gap := next(attachment.sent.gaps(start, end), None)) is not None:
            room_bytes = min(max_bytes - num_bytes, channel.free_credit_bytes)
            low, high = gap
            low = max(low, high - _MESSAGE_TOKENS, high - room_bytes // self._row_bytes)
            if low >= high:
                break
            run = np.array([[low], [high - low]])
            features = Features(session.uid, low, self._source.read_features([session], *run))
            if not channel.send(features, bulk=bulk):
                break
            attachment.sent.add(low, high)
            num_bytes += features.num_bytes
        return num_bytes
