"""A verifier loop's drafters: who is attached to whom, what was asked, what came back, and why not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from dspine_cluster.config import DraftingConfig
from dspine_cluster.core.draft_pace import DraftPace
from dspine_cluster.core.session import Session
from dspine_cluster.errors import ChannelClosedError
from dspine_cluster.transport.channel import Channel
from dspine_cluster.transport.messages import (
    Busy,
    Close,
    Draft,
    DraftItem,
    Features,
    Float32Array,
    Int32Array,
    Need,
    Open,
    Proposals,
    UInt8Array,
)

ReadFeatures = Callable[[Session, int, int], UInt8Array]
"""(session, start, end) -> the raw feature rows of those positions, uint8 [end - start, row_bytes]."""


class Fallback(StrEnum):
    """Why a request decoded plainly in a round that would have verified a block."""

    ABSENT = "absent"
    """No drafter is connected."""
    LATE = "late"
    LOST = "lost"
    """The drafter went away after it was asked."""
    RESTING = "resting"
    """The drafter failed repeatedly and is left alone for a while."""
    BUSY = "busy"
    NEED = "need"
    """The drafter lacks features; they are on their way."""
    CREDITS = "credits"
    """The channel is full of features."""
    JOINING = "joining"
    """The request asked for its first draft after the others did."""


@dataclass(frozen=True, slots=True, eq=False)
class DraftedBlock:
    """Proposals for one request's present anchor."""

    tokens: list[int]
    candidates: Int32Array | None  # [num_proposals, K]
    probs: Float32Array | None  # [num_proposals, K]
    confidences: list[float]


@dataclass(slots=True, eq=False)
class _Attachment:
    """One request at one drafter."""

    session: Session
    link: _Link
    sent_start: int
    sent_end: int
    """Features of positions sent_start .. sent_end - 1 have been sent."""
    asked_round: int = -1
    asked_at_s: float = 0.0
    block: DraftedBlock | None = None
    refusal: Fallback | None = None

    def restart_at(self, position: int) -> None:
        """Send features from `position` on next, and the ones before it later."""
        self.sent_start = self.sent_end = position

    @property
    def is_outstanding(self) -> bool:
        return self.asked_round == self.session.round and self.block is None and self.refusal is None


@dataclass(slots=True, eq=False)
class _Link:
    endpoint: str
    channel: Channel
    pace: DraftPace
    attachments: dict[int, _Attachment] = field(default_factory=dict)


class Drafters:
    """Every method is called by the loop's thread alone."""

    def __init__(
        self,
        config: DraftingConfig,
        read_features: ReadFeatures,
        on_lost: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._read_features = read_features
        self._on_lost = on_lost
        self._clock = clock
        self._links: dict[str, _Link] = {}
        self._attachments: dict[int, _Attachment] = {}
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
        config = self._config
        pace = DraftPace(
            config.late_factor, config.first_deadline_s, config.breaker_failures, config.breaker_rest_s
        )
        self._links[endpoint] = _Link(endpoint, channel, pace)

    def retain(self, endpoints: Iterable[str]) -> None:
        """Let go of drafters that are not among `endpoints`."""
        for endpoint in self._links.keys() - set(endpoints):
            link = self._links[endpoint]
            self._drop(link, report=False)
            link.channel.close()

    def receive(self) -> None:
        """Take in everything that has arrived."""
        for link in list(self._links.values()):
            try:
                for message in link.channel.receive():
                    self._take(link, message)
            except ChannelClosedError:
                self._drop(link, report=True)

    def ask(self, wanted: Sequence[tuple[Session, int]]) -> None:
        """Send each session's new features and ask for that many proposals after its anchor."""
        items: dict[str, list[DraftItem]] = {}
        repair_tokens = self._config.repair_tokens_per_round
        for session, num_proposals in wanted:
            attachment = self._attach(session)
            if attachment is None or attachment.link.pace.is_resting(self._clock()):
                continue
            try:
                self._send_latest(attachment)
                repair_tokens -= self._send_older(attachment, repair_tokens)
            except ChannelClosedError:
                self._drop(attachment.link, report=True)
                continue
            if attachment.sent_end != session.anchor_position:
                continue
            sampling = session.request.sampling
            item = DraftItem(
                uid=session.uid,
                round=session.round,
                anchor=session.anchor,
                position=session.anchor_position,
                num_proposals=num_proposals,
                temperature=sampling.temperature,
                seed=sampling.seed,
                output_index=session.num_output,
            )
            items.setdefault(attachment.link.endpoint, []).append(item)
            attachment.asked_round, attachment.asked_at_s = session.round, self._clock()
            attachment.block = attachment.refusal = None
        for link in [link for link in self._links.values() if link.endpoint in items]:
            try:
                link.channel.send(Draft(items[link.endpoint]))
            except ChannelClosedError:
                self._drop(link, report=True)

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
        """Seconds until the last outstanding draft of `sessions` is late; 0 when none is outstanding."""
        outstanding = [self._attachments[s.uid] for s in sessions if self.is_outstanding(s)]
        return max((self._late_at_s(attachment) - self._clock() for attachment in outstanding), default=0.0)

    def count_fallbacks(self, sessions: Sequence[Session]) -> None:
        """Note for each session that decodes without a block why it has none; lateness counts against the drafter."""
        late_links = set()
        for session in sessions:
            reason = self._reason(session)
            self.fallbacks[reason] += 1
            if reason is Fallback.LATE:
                late_links.add(self._attachments[session.uid].link.endpoint)
        for endpoint in late_links:
            self._links[endpoint].pace.note_failure(self._clock())

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
        for link in list(self._links.values()):
            self._drop(link, report=False)
            link.channel.close()

    def _attach(self, session: Session) -> _Attachment | None:
        """The session's attachment, made at the drafter with the fewest requests if it has none."""
        if session.uid in self._attachments:
            return self._attachments[session.uid]
        now = self._clock()
        links = [link for link in self._links.values() if not link.pace.is_resting(now)]
        if not links:
            return None
        link = min(links, key=lambda link: len(link.attachments))
        try:
            link.channel.send(Open(session.uid))
        except ChannelClosedError:
            self._drop(link, report=True)
            return None
        start = max(0, session.num_computed - self._config.attach_tokens)
        attachment = _Attachment(session, link, sent_start=start, sent_end=start)
        link.attachments[session.uid] = self._attachments[session.uid] = attachment
        return attachment

    def _send_latest(self, attachment: _Attachment) -> None:
        """Send the features up to the anchor ahead of everything else."""
        end = attachment.session.anchor_position
        if end - attachment.sent_end > self._config.attach_tokens:
            attachment.restart_at(end - self._config.attach_tokens)
        start = attachment.sent_end
        if start < end and attachment.link.channel.send(self._features(attachment.session, start, end)):
            attachment.sent_end = end

    def _send_older(self, attachment: _Attachment, max_tokens: int) -> int:
        """Send up to `max_tokens` of the features before those sent so far, newest first, and return how many."""
        end = attachment.sent_start
        start = max(0, end - max_tokens)
        if start >= end:
            return 0
        if not attachment.link.channel.send(self._features(attachment.session, start, end), bulk=True):
            return 0
        attachment.sent_start = start
        return end - start

    def _features(self, session: Session, start: int, end: int) -> Features:
        return Features(uid=session.uid, start=start, rows=self._read_features(session, start, end))

    def _take(self, link: _Link, message: object) -> None:
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

    def _take_proposals(self, link: _Link, message: Proposals) -> None:
        now = self._clock()
        taken_s = -1.0
        late = True
        for row, (uid, number) in enumerate(zip(message.uids, message.rounds, strict=True)):
            attachment = link.attachments.get(uid)
            if attachment is None:
                continue
            if attachment.asked_round == number:
                taken_s = max(taken_s, now - attachment.asked_at_s)
            if number != attachment.session.round or attachment.asked_round != number:
                continue
            late = False
            attachment.block = DraftedBlock(
                tokens=message.tokens[row].tolist(),
                candidates=None if message.candidates is None else message.candidates[row],
                probs=None if message.probs is None else message.probs[row],
                confidences=np.clip(message.confidence[row], 0.0, 1.0).tolist(),
            )
        if taken_s >= 0.0:
            link.pace.note_draft(taken_s, late=late)

    def _late_at_s(self, attachment: _Attachment) -> float:
        return attachment.asked_at_s + attachment.link.pace.deadline_s(self.plain_step_s)

    def _reason(self, session: Session) -> Fallback:
        if self._lost.get(session.uid) == session.round:
            return Fallback.LOST
        attachment = self._attachments.get(session.uid)
        if attachment is None:
            return Fallback.ABSENT if not self._links else Fallback.JOINING
        if attachment.asked_round == session.round:
            return attachment.refusal or Fallback.LATE
        if attachment.link.pace.is_resting(self._clock()):
            return Fallback.RESTING
        return Fallback.CREDITS if attachment.sent_end != session.anchor_position else Fallback.JOINING

    def _drop(self, link: _Link, *, report: bool) -> None:
        """Forget a link; its requests attach elsewhere at their next round."""
        if self._links.get(link.endpoint) is link:
            del self._links[link.endpoint]
        for uid, attachment in link.attachments.items():
            del self._attachments[uid]
            if attachment.is_outstanding:
                self._lost[uid] = attachment.session.round
        link.attachments.clear()
        if report:
            self._on_lost(link.endpoint)
