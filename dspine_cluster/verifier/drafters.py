"""A verifier loop's drafters: which request is attached where, what was asked, what came back, and why not."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import inf

from dspine_cluster.config import DraftingConfig
from dspine_cluster.core.draft_pace import DraftPace
from dspine_cluster.core.session import Phase, Session
from dspine_cluster.errors import ChannelClosedError, ChannelError
from dspine_cluster.transport.channel import Channel
from dspine_cluster.transport.messages import Busy, Close, Draft, DraftItem, Message, Need, Open, Proposals
from dspine_cluster.verifier.attachments import (
    Attachment,
    DraftedBlock,
    Fallback,
    Link,
    ReadFeatures,
    read_block,
)

_logger = logging.getLogger(__name__)


OnLost = Callable[[str, bool], None]
"""(endpoint, is_faulty) of a drafter that is gone, because it broke the protocol if it is faulty."""


class Drafters:
    """Every method is called by the loop's thread alone."""

    def __init__(
        self,
        config: DraftingConfig,
        read_features: ReadFeatures,
        on_lost: OnLost,
        clock: Callable[[], float],
        *,
        vocab_size: int,
    ) -> None:
        self._config = config
        self._read_features = read_features
        self._on_lost = on_lost
        self._clock = clock
        self._vocab_size = vocab_size
        self._misfits: set[str] = set()
        self._links: dict[str, Link] = {}
        self._attachments: dict[int, Attachment] = {}
        self._lost: dict[int, int] = {}  # uid -> the round whose draft went down with its drafter
        self.plain_step_s = 0.0
        """Time of a plain step, kept up to date by the loop: no draft is late before one has passed."""
        self.fallbacks: Counter[Fallback] = Counter()

    @property
    def num_connected(self) -> int:
        return len(self._links)

    def connect(self, endpoint: str, channel: Channel) -> None:
        """Use a drafter from now on. A new channel to the same endpoint replaces the old one."""
        if endpoint in self._links:
            self._drop(self._links[endpoint], report=False)
        self._misfits.discard(endpoint)
        config = self._config
        pace = DraftPace(
            config.late_factor, config.first_deadline_s, config.breaker_failures, config.breaker_rest_s
        )
        self._links[endpoint] = Link(endpoint, channel, pace)

    def note_misfit(self, endpoint: str) -> None:
        """A drafter was found whose fingerprints differ from the verifier's; it is not used."""
        self._misfits.add(endpoint)

    def retain(self, endpoints: Iterable[str]) -> None:
        """Let go of drafters that are not among `endpoints`."""
        kept = set(endpoints)
        self._misfits &= kept
        for endpoint in self._links.keys() - kept:
            self._drop(self._links[endpoint], report=False)

    def receive(self) -> None:
        """Take in everything that has arrived."""
        for link in list(self._links.values()):
            try:
                for message in link.channel.receive():
                    self._take(link, message)
            except ChannelClosedError:
                self._drop(link, report=True)
            except ChannelError as error:
                _logger.error("drafter %s broke the protocol and is dropped: %s", link.endpoint, error)
                self._drop(link, report=True, is_faulty=True)

    def ask(self, wanted: Sequence[tuple[Session, int]]) -> None:
        """Send each session's new features and ask for that many proposals after its anchor."""
        items: dict[str, list[DraftItem]] = {}
        repair_tokens = self._config.repair_tokens_per_round
        now = self._clock()
        for session, num_proposals in wanted:
            attachment = self._attach(session)
            if attachment is None:
                continue
            try:
                attachment.send_latest(self._read_features, self._config.attach_tokens)
                repair_tokens -= attachment.send_older(self._read_features, repair_tokens)
            except ChannelClosedError:
                self._drop(attachment.link, report=True)
                continue
            if attachment.is_caught_up:
                attachment.note_asked(now)
                items.setdefault(attachment.link.endpoint, []).append(_draft_item(session, num_proposals))
        for link in [link for link in self._links.values() if link.endpoint in items]:
            try:
                link.channel.send(Draft(items[link.endpoint]))
            except ChannelClosedError:
                self._drop(link, report=True)

    def send_prefilled(self, session: Session) -> None:
        """Let a drafter take in the features of a prompt while the rest of it is still being prefilled."""
        attachment = self._attach(session)
        if attachment is None:
            return
        try:
            attachment.send_prefilled(self._read_features, self._config.attach_tokens)
        except ChannelClosedError:
            self._drop(attachment.link, report=True)

    def block_of(self, session: Session) -> DraftedBlock | None:
        """The block drafted for the session's present anchor, if it has come."""
        attachment = self._attachments.get(session.uid)
        if attachment is None or attachment.asked_round != session.round:
            return None
        return attachment.block

    def is_outstanding(self, session: Session) -> bool:
        """Whether a draft for the present anchor was asked for and may still come in time."""
        attachment = self._attachments.get(session.uid)
        return (
            attachment is not None
            and attachment.is_outstanding
            and self._clock() < self._late_at_s(attachment)
        )

    def wait_s(self, sessions: Sequence[Session]) -> float:
        """Seconds until the next outstanding draft of `sessions` is late; infinity when none is outstanding."""
        outstanding = [self._attachments[s.uid] for s in sessions if self.is_outstanding(s)]
        now = self._clock()
        return min((max(0.0, self._late_at_s(attachment) - now) for attachment in outstanding), default=inf)

    def count_fallbacks(self, sessions: Sequence[Session]) -> None:
        """Note for each session that decodes without a block why it has none; lateness counts against the drafter."""
        late: dict[str, Link] = {}
        for session in sessions:
            reason = self._reason(session)
            self.fallbacks[reason] += 1
            if reason is Fallback.LATE:
                link = self._attachments[session.uid].link
                late[link.endpoint] = link
        for link in late.values():
            link.pace.note_failure(self._clock())

    def forget(self, session: Session) -> None:
        """The session ends or gives up its pages: free what its drafter holds."""
        self._lost.pop(session.uid, None)
        attachment = self._attachments.pop(session.uid, None)
        if attachment is None:
            return
        del attachment.link.attachments[session.uid]
        try:
            attachment.link.channel.send(Close(session.uid))
        except ChannelClosedError:
            self._drop(attachment.link, report=True)

    def close(self) -> None:
        """Let go of all drafters."""
        self.retain([])

    def _attach(self, session: Session) -> Attachment | None:
        """The session's attachment at a drafter that is not resting, made at the one with the fewest requests if it
        has none; None when all rest or there is none."""
        now = self._clock()
        attachment = self._attachments.get(session.uid)
        if attachment is not None and not attachment.link.pace.is_resting(now):
            return attachment
        links = [link for link in self._links.values() if not link.pace.is_resting(now)]
        if not links:
            return None
        if attachment is not None:
            self.forget(session)
        link = min(links, key=lambda link: len(link.attachments))
        try:
            link.channel.send(Open(session.uid))
        except ChannelClosedError:
            self._drop(link, report=True)
            return None
        is_new = session.phase is Phase.PREFILL
        start = 0 if is_new else max(0, session.num_computed - self._config.attach_tokens)
        attachment = Attachment(session, link, sent_start=start, sent_end=start)
        link.attachments[session.uid] = self._attachments[session.uid] = attachment
        return attachment

    def _take(self, link: Link, message: Message) -> None:
        match message:
            case Proposals():
                self._take_proposals(link, message)
            case Busy():
                for uid, number in zip(message.uids, message.rounds, strict=True):
                    attachment = link.attachments.get(uid)
                    if attachment is not None and attachment.asked_round == number:
                        attachment.refusal = Fallback.BUSY
            case Need():
                attachment = link.attachments.get(message.uid)
                if attachment is not None:
                    attachment.refusal = Fallback.NEED
                    attachment.restart_at(min(attachment.sent_end, message.start))
            case _:
                raise ChannelError(f"a drafter does not send {type(message).__name__}")

    def _take_proposals(self, link: Link, message: Proposals) -> None:
        """Keep the blocks of present rounds; those of earlier rounds only tell how long drafts take."""
        now = self._clock()
        times_s = []
        is_late = True
        for row, (uid, number) in enumerate(zip(message.uids, message.rounds, strict=True)):
            attachment = link.attachments.get(uid)
            if attachment is None or number not in attachment.asked_at_s:
                continue
            times_s.append(now - attachment.asked_at_s[number])
            if attachment.session.round == number:
                is_late = False
                attachment.block = read_block(
                    message, row, attachment.session.request.sampling, self._vocab_size
                )
        if times_s:
            link.pace.note_draft(max(times_s), late=is_late)

    def _late_at_s(self, attachment: Attachment) -> float:
        return attachment.asked_at_s[attachment.asked_round] + attachment.link.pace.deadline_s(
            self.plain_step_s
        )

    def _reason(self, session: Session) -> Fallback:
        if self._lost.get(session.uid) == session.round:
            return Fallback.LOST
        now = self._clock()
        attachment = self._attachments.get(session.uid)
        if attachment is None:
            if not self._links:
                return Fallback.FINGERPRINT if self._misfits else Fallback.ABSENT
            all_rest = all(link.pace.is_resting(now) for link in self._links.values())
            return Fallback.RESTING if all_rest else Fallback.JOINING
        if attachment.asked_round == session.round:
            return attachment.refusal or Fallback.LATE
        if attachment.link.pace.is_resting(now):
            return Fallback.RESTING
        return Fallback.JOINING if attachment.is_caught_up else Fallback.CREDITS

    def _drop(self, link: Link, *, report: bool, is_faulty: bool = False) -> None:
        """Let go of a link; its requests attach elsewhere at their next round."""
        link.channel.close()
        if self._links.get(link.endpoint) is link:
            del self._links[link.endpoint]
        for uid, attachment in link.attachments.items():
            del self._attachments[uid]
            if attachment.is_outstanding:
                self._lost[uid] = attachment.session.round
        link.attachments.clear()
        if report:
            self._on_lost(link.endpoint, is_faulty)


def _draft_item(session: Session, num_proposals: int) -> DraftItem:
    sampling = session.request.sampling
    return DraftItem(
        uid=session.uid,
        round=session.round,
        anchor=session.anchor,
        position=session.anchor_position,
        num_proposals=num_proposals,
        temperature=sampling.temperature,
        seed=sampling.seed,
        output_index=session.num_output,
    )
