"""What one drafter is asked for after a pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress

import numpy as np

from dspine_cluster.transport.messages import Draft
from dspine_cluster.verifier.attachments import Attachment, Link, Unchanging


class Asks:
    """Requests that are attached to one drafter and to be drafted for: in columns, a row for each."""

    __slots__ = ("attachments", "link", "num_proposals", "positions", "sessions", "uids")

    def __init__(self, link: Link, attachments: Sequence[Attachment], num_proposals: Sequence[int]) -> None:
        self.link = link
        self.attachments = attachments
        self.num_proposals = num_proposals
        self.sessions = [attachment.session for attachment in attachments]
        self.uids = [session.uid for session in self.sessions]
        self.positions = [len(session.tokens) - 1 for session in self.sessions]
        """Of the anchors: features of all positions before them exist."""

    def part(self, are_chosen: Iterable[bool]) -> Asks:
        """Some of the rows."""
        chosen = list(are_chosen)
        return Asks(
            self.link, list(compress(self.attachments, chosen)), list(compress(self.num_proposals, chosen))
        )

    def draft(self, now_s: float) -> Draft:
        """Ask now for the drafts of present rounds."""
        uids, link = self.uids, self.link
        rounds = [session.round for session in self.sessions]
        awaited = link.awaited
        if awaited:
            for uid in uids:
                if uid in awaited:
                    awaited[uid].note_late()
        for attachment, number in zip(self.attachments, rounds, strict=True):
            attachment.asked_round, attachment.asked_at_s = number, now_s
            attachment.block = attachment.refusal = None
        awaited.update(zip(uids, self.attachments, strict=True))
        if uids != link.unchanging.uids:
            link.unchanging = self._unchanging()
        numbers = link.unchanging.numbers.copy()
        anchors = [session.tokens[-1] for session in self.sessions]
        numbers[1:5] = (rounds, anchors, self.positions, self.num_proposals)  # rows as in `Draft`
        numbers[5] += numbers[3]
        return Draft(numbers, link.unchanging.temperatures)

    def _unchanging(self) -> Unchanging:
        none = [0] * len(self.uids)
        own = self.attachments
        before_output = [1 - attachment.num_prompt for attachment in own]
        has_seed = [attachment.has_seed for attachment in own]
        seeds = [attachment.seed for attachment in own]
        return Unchanging(
            self.uids,
            np.array((self.uids, none, none, none, none, before_output, has_seed, seeds), np.int64),
            np.array([attachment.temperature for attachment in own], np.float64),
        )
