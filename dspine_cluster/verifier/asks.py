"""What one drafter is asked for after a pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress

import numpy as np

from dspine_cluster.transport.messages import Draft
from dspine_cluster.verifier.attachments import Attachment, Link, Unchanging
from dspine_cluster.verifier.wanted import Wanted


class Asks:
    """Requests that are attached to one drafter and to be drafted for: in columns, a row for each."""

    __slots__ = ("attachments", "link", "positions", "uids", "wanted")

    def __init__(self, link: Link, attachments: Sequence[Attachment], wanted: Wanted) -> None:
        self.link = link
        self.attachments = attachments
        self.wanted = wanted
        self.uids = wanted.uids
        self.positions = [len(session.tokens) - 1 for session in wanted.sessions]
        """Of the anchors: features of all positions before them exist."""

    def part(self, are_chosen: Iterable[bool]) -> Asks:
        """Some of the rows."""
        chosen = list(are_chosen)
        return Asks(self.link, list(compress(self.attachments, chosen)), self.wanted.part(chosen))

    def draft(self, now_s: float) -> Draft:
        """Ask now for the drafts of present rounds."""
        uids, link, sessions = self.uids, self.link, self.wanted.sessions
        rounds = [session.round for session in sessions]
        awaited = link.awaited
        if awaited:
            for uid in uids:
                if uid in awaited:
                    awaited[uid].note_late()
        for attachment, number in zip(self.attachments, rounds, strict=True):
            attachment.asked_round, attachment.asked_at_s = number, now_s
            attachment.block = attachment.refusal = None
        if uids != link.unchanging.uids:
            link.unchanging = self._unchanging()
        awaited.update(link.unchanging.attachments)
        numbers = link.unchanging.numbers.copy()
        anchors = [session.tokens[-1] for session in sessions]
        numbers[1:5] = (rounds, anchors, self.positions, self.wanted.num_proposals)  # rows as in `Draft`
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
            dict(zip(self.uids, own, strict=True)),
            np.array((self.uids, none, none, none, none, before_output, has_seed, seeds), np.int64),
            np.array([attachment.temperature for attachment in own], np.float64),
        )
