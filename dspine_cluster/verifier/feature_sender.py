"""Which features go to a drafter in a step: new ones at once, old ones within a budget, so that no step grows long."""

from __future__ import annotations

import sys
from collections.abc import Callable

from dspine_cluster.core.session import Session
from dspine_cluster.transport.messages import Features, UInt8Array
from dspine_cluster.verifier.attachments import Attachment

ReadFeatures = Callable[[Session, int, int], UInt8Array]
"""(session, start, end) -> the raw feature rows of those positions, uint8 [end - start, row_bytes]."""

_MESSAGE_TOKENS = 512
"""Positions in one message at most: bounds what is read from the device at once."""


class FeatureSender:
    """Sends each position once. `start_step` renews the budget that all attachments share.

    What the last pass computed costs nothing of it: a step that computes much may send much. Features of earlier
    passes, of a request that attaches or whose drafter has lost them, are sent newest first: what a drafter needs to
    begin with ahead of everything else, the rest behind it.

    Every method raises ChannelClosedError if the drafter is gone.
    """

    def __init__(
        self, read: ReadFeatures, *, row_bytes: int, attach_tokens: int, repair_bytes_per_step: int
    ) -> None:
        self._read = read
        self._row_bytes = row_bytes
        self._attach_tokens = attach_tokens
        self._repair_bytes_per_step = repair_bytes_per_step
        self.budget_bytes = repair_bytes_per_step
        """What is left for this step."""

    def start_step(self) -> None:
        self.budget_bytes = self._repair_bytes_per_step

    def spend(self, num_bytes: int) -> None:
        """Something else was sent that a step must not have too much of."""
        self.budget_bytes -= num_bytes

    def send_tail(self, attachment: Attachment) -> None:
        """Send what a draft at the anchor needs: the last features before it."""
        end = attachment.session.anchor_position
        start, fresh = self._tail_start(attachment), attachment.fresh_start
        self._send(attachment, max(start, fresh), end, sys.maxsize)
        if attachment.is_answered:
            self._send_paced(attachment, start, min(fresh, end), bulk=False)

    def has_tail(self, attachment: Attachment) -> bool:
        """Whether nothing is missing of what `send_tail` sends."""
        return attachment.has(self._tail_start(attachment), attachment.session.anchor_position)

    def send_rest(self, attachment: Attachment) -> None:
        """Send the other features that the drafter would keep, so that everything else may overtake them."""
        session = attachment.session
        oldest, end = attachment.oldest_position, session.num_computed
        fresh = max(oldest, attachment.fresh_start)
        self._send(attachment, fresh, end, attachment.link.spare_bytes, bulk=True)
        if attachment.has(fresh, end):
            attachment.fresh_start = end
        if attachment.is_answered:
            self._send_paced(attachment, oldest, min(fresh, end), bulk=True)

    def _tail_start(self, attachment: Attachment) -> int:
        return max(attachment.oldest_position, attachment.session.anchor_position - self._attach_tokens)

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
            features = Features(session.uid, low, self._read(session, low, high))
            if not channel.send(features, bulk=bulk):
                break
            attachment.sent.add(low, high)
            num_bytes += features.num_bytes
        return num_bytes
