"""What drafters send to a verifier loop, taken in message by message."""

from __future__ import annotations

import logging
from collections.abc import Callable

from dspine_cluster.errors import ChannelClosedError, ChannelError
from dspine_cluster.transport.messages import Busy, Message, Need, Opened, Proposals
from dspine_cluster.verifier.attachments import Attachment, Fallback, Link
from dspine_cluster.verifier.drafted import read_blocks
from dspine_cluster.verifier.links import Links

_logger = logging.getLogger(__name__)


class Replies:
    """Notes at each attachment what has come for it. A drafter that breaks the protocol is dropped."""

    def __init__(self, links: Links, clock: Callable[[], float], vocab_size: int) -> None:
        self._links = links
        self._clock = clock
        self._vocab_size = vocab_size
        self._slowest_draft_s = 0.0

    def receive(self) -> None:
        """Take in everything that has arrived."""
        for link in self._links.all:
            try:
                for message in link.channel.receive():
                    self._take(link, message)
            except ChannelClosedError:
                self._links.drop(link, report=True)
            except ChannelError as error:
                _logger.error("drafter %s broke the protocol and is dropped: %s", link.endpoint, error)
                self._links.drop(link, report=True, is_faulty=True)

    def take_slowest_draft_s(self) -> float:
        """What drafters needed, by their own clocks, for drafts of present rounds that came since this was last asked:
        the longest time; 0 if none came."""
        taken_s, self._slowest_draft_s = self._slowest_draft_s, 0.0
        return taken_s

    def _take(self, link: Link, message: Message) -> None:
        match message:
            case Proposals():
                self._take_proposals(link, message)
            case Busy():
                for uid, number in zip(message.uids.tolist(), message.rounds.tolist(), strict=True):
                    attachment = link.attachments.get(uid)
                    if attachment is not None and attachment.asked_round == number:
                        attachment.note_refusal(Fallback.BUSY)
            case Need():
                attachment = link.attachments.get(message.uid)
                if attachment is not None:
                    attachment.note_need(message.start, message.end)
            case Opened():
                attachment = link.attachments.get(message.uid)
                if attachment is not None and attachment.attempt == message.attempt:
                    attachment.note_opened(message)
            case _:
                raise ChannelError(f"a drafter does not send {type(message).__name__}")

    def _take_proposals(self, link: Link, message: Proposals) -> None:
        """Keep the blocks of present rounds; those of earlier rounds only tell how long drafts take."""
        uids, numbers, _ = message.numbers.tolist()
        attachments = map(link.attachments.get, uids)
        present: dict[int, Attachment] = {}  # by row
        ask_times_s: list[float] = []
        for row, (attachment, number) in enumerate(zip(attachments, numbers, strict=True)):
            if attachment is None:
                continue
            if attachment.asked_round == number == attachment.session.round:
                present[row] = attachment
            elif (asked_at_s := attachment.when_asked_s(number)) is not None:
                ask_times_s.append(asked_at_s)
        if present:
            self._slowest_draft_s = max(self._slowest_draft_s, message.draft_s)
            ask_times_s.append(min([attachment.asked_at_s for attachment in present.values()]))
            sampled = [row for row, attachment in present.items() if attachment.needs_distributions]
            blocks = read_blocks(message, sampled, self._vocab_size)
            awaited = link.awaited
            for row, attachment in present.items():
                attachment.block = blocks[row]
                awaited.pop(uids[row], None)
        if ask_times_s:
            link.pace.note_draft(self._clock() - min(ask_times_s), late=not present)
