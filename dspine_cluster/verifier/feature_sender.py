"""Which features go to a drafter in a step: new ones at once, old ones within a budget, so that no step grows long."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dspine_cluster.core.session import Session
from dspine_cluster.errors import ChannelClosedError
from dspine_cluster.transport.messages import FeatureBatch, Features, UInt8Array
from dspine_cluster.verifier.attachments import Attachment, Link

_MESSAGE_TOKENS = 512
"""Positions in one message at most: bounds what is read from the device at once."""
_MESSAGE_BYTES = 4 << 20
"""More positions than that may be in a message of all requests if they are not more bytes."""


class FeatureSource(Protocol):
    """What passes have left behind."""

    def features_start(self, session: Session, end: int) -> int:
        """The first position from which on features of all positions before `end` were computed."""
        ...

    def read_features(self, runs: Sequence[tuple[Session, int, int]]) -> UInt8Array:
        """Raw feature rows of positions start .. end - 1 of each run (session, start, end), one run after the other:
        uint8 `[num_rows, row_bytes]`."""
        ...


@dataclass(slots=True)
class _Batch:
    """New features for one drafter that travel together."""

    room_tokens: int
    """How many more its channel takes now."""
    attachments: list[Attachment] = field(default_factory=list)
    runs: list[tuple[Session, int, int]] = field(default_factory=list)
    num_tokens: int = 0


class FeatureSender:
    """Sends each position once. `start_step` renews the budget that all attachments share.

    What the last pass computed costs nothing of it: a step that computes much may send much. Features of earlier
    passes, of a request that attaches or whose drafter has lost them, are sent newest first: what a drafter needs to
    begin with ahead of everything else, the rest behind it. Where passes left features out, a drafter gets those after
    the gap.

    Every method but `flush` raises ChannelClosedError if the drafter is gone.
    """

    def __init__(
        self, source: FeatureSource, *, row_bytes: int, attach_tokens: int, repair_bytes_per_step: int
    ) -> None:
        self._source = source
        self._row_bytes = row_bytes
        self._batch_tokens = max(_MESSAGE_TOKENS, _MESSAGE_BYTES // max(1, row_bytes))
        self._attach_tokens = attach_tokens
        self._repair_bytes_per_step = repair_bytes_per_step
        self._batches: dict[str, _Batch] = {}  # by endpoint
        self.budget_bytes = repair_bytes_per_step
        """What is left for this step."""

    def start_step(self) -> None:
        self.budget_bytes = self._repair_bytes_per_step

    def spend(self, num_bytes: int) -> None:
        """Something else was sent that a step must not have too much of."""
        self.budget_bytes -= num_bytes

    def send_tail(self, attachment: Attachment) -> None:
        """Send what a draft at the anchor needs: the last features before it. New ones leave with the next `flush`,
        those of all requests together."""
        end, last = len(attachment.session.tokens) - 1, attachment.sent.end
        if attachment.fresh_start <= last < end <= last + self._attach_tokens and attachment.has_all_before(
            last
        ):
            attachment.tail = (last, end)  # what mostly happens: nothing else is missing
            self._gather(attachment, last, end)
            return
        start, end = attachment.tail = self._tail(attachment)
        fresh = attachment.fresh_start
        first = attachment.sent.missing_after(start, end)
        if first is not None and first >= min(fresh, end):
            if first < end:
                self._gather(attachment, first, end)
            return
        self._send(attachment, max(start, fresh), end, sys.maxsize)
        if attachment.is_answered:
            self._send_paced(attachment, start, min(fresh, end), bulk=False)

    def flush(self) -> list[Link]:
        """Send what `send_tail` has gathered, as far as the channels allow; the links of drafters that are gone."""
        lost = {}
        batches, self._batches = self._batches, {}
        for batch in batches.values():
            try:
                self._send_batch(batch)
            except ChannelClosedError:
                link = batch.attachments[0].link
                lost[link.endpoint] = link
        return list(lost.values())

    def has_tail(self, attachment: Attachment) -> bool:
        """Whether nothing is missing of what `send_tail` was to send, and that was something."""
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

    def _gather(self, attachment: Attachment, start: int, end: int) -> None:
        """Have positions start .. end - 1 sent together with those of other requests."""
        endpoint = attachment.link.endpoint
        batch = self._batches.get(endpoint)
        if batch is None:
            batch = self._new_batch(attachment.link)
        num_tokens = end - start
        if num_tokens > batch.room_tokens or num_tokens > _MESSAGE_TOKENS:
            num_tokens = min(batch.room_tokens, _MESSAGE_TOKENS)
            start = end - num_tokens
            if num_tokens <= 0:
                return
        if batch.num_tokens + num_tokens > self._batch_tokens:
            self._send_batch(self._batches.pop(endpoint))
            batch = self._new_batch(attachment.link)
        batch.attachments.append(attachment)
        batch.runs.append((attachment.session, start, end))
        batch.num_tokens += num_tokens
        batch.room_tokens -= num_tokens

    def _new_batch(self, link: Link) -> _Batch:
        batch = self._batches[link.endpoint] = _Batch(link.channel.free_credit_bytes // self._row_bytes)
        return batch

    def _send_batch(self, batch: _Batch) -> None:
        if not batch.runs:
            return
        rows = self._source.read_features(batch.runs)
        message: Features | FeatureBatch
        if len(batch.runs) == 1:
            session, start, _ = batch.runs[0]
            message = Features(session.uid, start, rows)
        else:
            message = FeatureBatch.of(
                uids=[session.uid for session, _, _ in batch.runs],
                starts=[start for _, start, _ in batch.runs],
                counts=[end - start for _, start, end in batch.runs],
                rows=rows,
            )
        if batch.attachments[0].link.channel.send(message):
            for attachment, (_, start, end) in zip(batch.attachments, batch.runs, strict=True):
                attachment.sent.add(start, end)

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
            features = Features(session.uid, low, self._source.read_features([(session, low, high)]))
            if not channel.send(features, bulk=bulk):
                break
            attachment.sent.add(low, high)
            num_bytes += features.num_bytes
        return num_bytes
