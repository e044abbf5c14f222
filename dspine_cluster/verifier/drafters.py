"""A verifier loop's drafters: who is asked for what, what has come of it, and why not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from dspine_cluster.config import DraftingConfig
from dspine_cluster.core.session import Session
from dspine_cluster.errors import ChannelClosedError
from dspine_cluster.transport.channel import Channel
from dspine_cluster.transport.messages import KEY_BYTES
from dspine_cluster.verifier.asks import Asks
from dspine_cluster.verifier.attachments import Attachment, Fallback, Link
from dspine_cluster.verifier.draft_keys import DraftKeys, RootOf
from dspine_cluster.verifier.drafted import DraftedBlock
from dspine_cluster.verifier.feature_sender import FeatureSender, FeatureSource
from dspine_cluster.verifier.links import Links, OnLost
from dspine_cluster.verifier.replies import Replies
from dspine_cluster.verifier.wanted import Wanted


class Drafters:
    """Every method is called by the loop's thread alone."""

    def __init__(
        self,
        config: DraftingConfig,
        source: FeatureSource,
        on_lost: OnLost,
        clock: Callable[[], float],
        *,
        vocab_size: int,
        row_bytes: int,
        root_of: RootOf | None,
    ) -> None:
        """`row_bytes` are those of one feature; `root_of` see `DraftKeys`."""
        self._sender = FeatureSender(
            source,
            row_bytes=row_bytes,
            attach_tokens=config.attach_tokens,
            repair_bytes_per_step=config.repair_bytes_per_step,
        )
        self._links = Links(config, DraftKeys(root_of), on_lost, clock)
        self._replies = Replies(self._links, clock, vocab_size)
        self._clock = clock
        self._misfits: set[str] = set()
        self.plain_step_s = 0.0
        """Time of a plain step, kept up to date by the loop: no draft is late before one has passed."""
        self.fallbacks: Counter[Fallback] = Counter()

    @property
    def num_connected(self) -> int:
        return len(self._links)

    @property
    def attached(self) -> tuple[tuple[str, int], ...]:
        """Endpoint of each connected drafter, and the requests that are attached to it. Any thread may ask."""
        return tuple((link.endpoint, len(link.attachments)) for link in self._links.all)

    def connect(self, endpoint: str, channel: Channel) -> None:
        """Use a drafter from now on. A new channel to the same endpoint replaces the old one."""
        self._misfits.discard(endpoint)
        self._links.connect(endpoint, channel)

    def note_misfit(self, endpoint: str) -> None:
        """A drafter was found whose fingerprints differ from the verifier's; it is not used."""
        self._misfits.add(endpoint)

    def retain(self, endpoints: Iterable[str]) -> None:
        """Let go of drafters that are not among `endpoints`."""
        kept = set(endpoints)
        self._misfits &= kept
        self._links.retain(kept)

    def receive(self) -> None:
        """Take in everything that has arrived."""
        self._replies.receive()

    def greet(self, sessions: Sequence[Session]) -> None:
        """Attach sessions whose prefill is about to begin, so that their drafters tell what they have by its end."""
        for session in sessions:
            self._links.attach(session)

    def ask(self, wanted: Wanted, prefilling: Sequence[Session] = ()) -> int:
        """Send features and ask for that many proposals after each session's anchor. Returns how many blocks were
        asked for.

        `prefilling` are those whose prompts are being computed: a drafter can take them in meanwhile.
        """
        self._sender.start_step()
        attached: list[Attachment] = []
        num_asked = 0
        pending = wanted
        while pending.uids:
            pending, num_sent = self._ask(pending, attached)
            num_asked += num_sent
        for session in prefilling:
            attachment = self._links.usable_attachment_of(session, self._clock()) or self._attach(session)
            if attachment is not None:
                self._send_rest(attachment)
        for attachment in attached:
            if self._links.attachment_of(attachment.session) is attachment:
                self._send_rest(attachment)
        return num_asked

    def hold_back(self, sessions: Sequence[Session]) -> None:
        """Send nothing of sessions that are not drafted for, or of what their last pass computed if that left features
        out. When they are drafted for again, what they have computed meanwhile follows at the pace of old features."""
        for session in sessions:
            attachment = self._links.attachment_of(session)
            if attachment is not None:
                attachment.hold_back()

    def blocks_of(self, sessions: Sequence[Session]) -> list[DraftedBlock | None]:
        """The block drafted for each session's present anchor; None where none has come."""
        find = self._links.attachments.get
        return [
            None if (own := find(session.uid)) is None or own.asked_round != session.round else own.block
            for session in sessions
        ]

    def take_slowest_draft_s(self) -> float:
        """As `Replies.take_slowest_draft_s`."""
        return self._replies.take_slowest_draft_s()

    def outstanding(self) -> dict[int, float]:
        """Requests whose draft for the present anchor may still come in time: by uid, when it will be late."""
        now = self._clock()
        found = {}
        for link in self._links.all:
            if not link.awaited:
                continue
            deadline_s = link.pace.deadline_s(self.plain_step_s)
            for uid, attachment in link.awaited.items():
                number = attachment.asked_round
                late_at_s = attachment.asked_at_s + deadline_s
                if now < late_at_s and number == attachment.session.round:
                    found[uid] = late_at_s
        return found

    @property
    def awaiting(self) -> tuple[tuple[int, float], ...]:
        """Of each drafter how many drafts are awaited, and after how long they are late."""
        return tuple([(len(x.awaited), x.pace.deadline_s(self.plain_step_s)) for x in self._links.all])

    def count_fallbacks(self, sessions: Sequence[Session]) -> None:
        """Note for each session that decodes without a block why it has none; lateness counts against the drafter."""
        late: dict[str, Link] = {}
        for session in sessions:
            attachment = self._links.attachment_of(session)
            reason = self._reason(session, attachment)
            self.fallbacks[reason] += 1
            if reason is Fallback.LATE and attachment is not None:
                late[attachment.link.endpoint] = attachment.link
        for link in late.values():
            link.pace.note_failure(self._clock())

    def forget(self, session: Session) -> str | None:
        """The session ends or gives up its pages: free what its drafter holds, or leave it there for others. Returns
        the endpoint of the drafter that it was attached to."""
        return self._links.forget(session)

    def close(self) -> None:
        """Let go of all drafters."""
        self.retain([])

    def _attach(self, session: Session) -> Attachment | None:
        """Attach a session at a drafter that is not resting, if this step has not sent enough already."""
        if self._sender.budget_bytes <= 0:
            return None
        if (attachment := self._links.attach(session)) is not None:
            self._sender.spend(attachment.num_keys * KEY_BYTES)
        return attachment

    def _ask(self, wanted: Wanted, attached: list[Attachment]) -> tuple[Wanted, int]:
        """Ask once, and add to `attached` whose drafters lack more than a draft needs. Returns what is to be asked
        again, because its drafter was found to be gone, and the number of blocks that were asked for."""
        now_s = self._clock()
        again, num_asked = Wanted(), 0
        for asks in self._by_link(wanted, now_s):
            try:
                num_asked += self._ask_one(asks, now_s, attached)
            except ChannelClosedError:
                self._links.drop(asks.link, report=True)
                again.extend(asks.wanted)
        return again, num_asked

    def _ask_one(self, asks: Asks, now_s: float, attached: list[Attachment]) -> int:
        """Ask one drafter. `attached` and what is returned as for `_ask`; raises ChannelClosedError if it is gone."""
        if not self._sender.send_tails(asks):
            asks = asks.part([x.is_steady or self._can_be_asked(x, attached) for x in asks.attachments])
        if asks.uids:
            self._links.send(asks.link, asks.draft(now_s))
        return len(asks.uids)

    def _by_link(self, wanted: Wanted, now_s: float) -> list[Asks]:
        """What each drafter is to be asked for; those that are attached to none, or to one that rests, are attached."""
        for link in self._links.all:
            if link.unchanging.uids == wanted.uids and not link.pace.is_resting(now_s):
                return [Asks(link, [*link.unchanging.attachments.values()], wanted)]
        usable = self._links.usable_attachment_of
        found = [usable(session, now_s) or self._attach(session) for session in wanted.sessions]
        asks = []
        for link in dict.fromkeys([own.link for own in found if own is not None]):
            are_own = [own is not None and own.link is link for own in found]
            own = [attachment for attachment in found if attachment is not None and attachment.link is link]
            asks.append(Asks(link, own, wanted.part(are_own)))
        return asks

    def _can_be_asked(self, attachment: Attachment, attached: list[Attachment]) -> bool:
        """Whether a draft has what it needs. `attached` as for `_ask`."""
        if attachment.settles():
            return True
        attached.append(attachment)
        return self._sender.has_tail(attachment)

    def _send_rest(self, attachment: Attachment) -> None:
        try:
            self._sender.send_rest(attachment)
        except ChannelClosedError:
            self._links.drop(attachment.link, report=True)

    def _reason(self, session: Session, attachment: Attachment | None) -> Fallback:
        if self._links.has_lost(session):
            return Fallback.LOST
        if attachment is None:
            if not len(self._links):
                return Fallback.FINGERPRINT if self._misfits else Fallback.ABSENT
            return Fallback.JOINING if self._links.rested else Fallback.RESTING
        if attachment.asked_round == session.round:
            return attachment.refusal or Fallback.LATE
        if attachment.link.pace.is_resting(self._clock()):
            return Fallback.RESTING
        return attachment.reason_not_asked(self._clock(), self.plain_step_s)
