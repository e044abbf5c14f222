"""The drafters that a verifier is connected to, and which request is attached to which of them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import count

from dspine_cluster.config import DraftingConfig
from dspine_cluster.core.draft_pace import DraftPace
from dspine_cluster.core.session import Session
from dspine_cluster.errors import ChannelClosedError
from dspine_cluster.transport.channel import Channel
from dspine_cluster.transport.messages import KEY_BYTES, Close, Message, Open, join_keys
from dspine_cluster.verifier.attachments import OF_NOBODY, Attachment, Link
from dspine_cluster.verifier.draft_keys import DraftKeys

_RESERVED_SHARE = 4
"""One in so many byte credits is kept for the features of the last pass."""

OnLost = Callable[[str, bool], None]
"""(endpoint, is_faulty) of a drafter that is gone, because it broke the protocol if it is faulty."""


class Links:
    """A link that closes is dropped, on whatever path that is noticed; its requests attach elsewhere."""

    def __init__(
        self, config: DraftingConfig, keys: DraftKeys, on_lost: OnLost, clock: Callable[[], float]
    ) -> None:
        self._config = config
        self._keys = keys
        self._on_lost = on_lost
        self._clock = clock
        self._attempts = count()
        self._by_endpoint: dict[str, Link] = {}
        self.attachments: dict[int, Attachment] = {}
        """By uid. Changed here alone."""
        self._lost: dict[int, int] = {}  # uid -> the round whose draft went down with its drafter

    def __len__(self) -> int:
        return len(self._by_endpoint)

    @property
    def all(self) -> list[Link]:
        return list(self._by_endpoint.values())

    @property
    def rested(self) -> list[Link]:
        """Those that may be used now."""
        now = self._clock()
        return [link for link in self._by_endpoint.values() if not link.pace.is_resting(now)]

    def connect(self, endpoint: str, channel: Channel) -> None:
        """Use a drafter from now on. A new channel to the same endpoint replaces the old one."""
        if endpoint in self._by_endpoint:
            self.drop(self._by_endpoint[endpoint], report=False)
        config = self._config
        pace = DraftPace(
            config.late_factor, config.first_deadline_s, config.breaker_failures, config.breaker_rest_s
        )
        reserve_bytes = channel.free_credit_bytes // _RESERVED_SHARE
        self._by_endpoint[endpoint] = Link(endpoint, channel, pace, reserve_bytes)

    def retain(self, endpoints: Collection[str]) -> None:
        """Let go of drafters that are not among `endpoints`."""
        for link in self.all:
            if link.endpoint not in endpoints:
                self.drop(link, report=False)

    def drop(self, link: Link, *, report: bool, is_faulty: bool = False) -> None:
        """Let go of a link; its requests attach elsewhere at their next round."""
        link.channel.close()
        if self._by_endpoint.get(link.endpoint) is link:
            del self._by_endpoint[link.endpoint]
        for uid, attachment in link.attachments.items():
            del self.attachments[uid]
            if attachment.is_outstanding:
                self._lost[uid] = attachment.session.round
        link.attachments.clear()
        link.awaited.clear()
        if report:
            self._on_lost(link.endpoint, is_faulty)

    def send(self, link: Link, message: Message) -> bool:
        """Whether the drafter is still there."""
        try:
            link.channel.send(message)
        except ChannelClosedError:
            self.drop(link, report=True)
            return False
        return True

    def has_lost(self, session: Session) -> bool:
        """Whether the draft for the present anchor went down with its drafter."""
        return self._lost.get(session.uid) == session.round

    def attachment_of(self, session: Session) -> Attachment | None:
        return self.attachments.get(session.uid)

    def usable_attachment_of(self, session: Session, now_s: float) -> Attachment | None:
        """The session's attachment if its drafter is not resting."""
        attachment = self.attachments.get(session.uid)
        if attachment is None or attachment.link.pace.is_resting(now_s):
            return None
        return attachment

    def attach(self, session: Session) -> Attachment | None:
        """Attach the session to the drafter that it prefers or else the one with the fewest requests, of those that do
        not rest, also if it is attached to one that does; None when all rest or there is none."""
        rested = self.rested
        if not rested:
            return None
        self.detach(session)
        preferred = session.request.preferred_drafter
        link = min(rested, key=lambda link: (link.endpoint not in preferred, len(link.attachments)))
        keys = join_keys(self._keys.keys_of(session))
        attempt = next(self._attempts)
        if not self.send(link, Open(session.uid, keys, attempt)):
            return None
        num_keys = len(keys) // KEY_BYTES
        attachment = Attachment(session, link, attempt, self._clock(), num_keys, session.num_computed)
        link.attachments[session.uid] = self.attachments[session.uid] = attachment
        return attachment

    def detach(self, session: Session) -> None:
        """Close the session's context at its drafter, which may keep the pages that are named now."""
        attachment = self.attachments.pop(session.uid, None)
        if attachment is not None:
            del attachment.link.attachments[session.uid]
            attachment.link.awaited.pop(session.uid, None)
            attachment.link.unchanging = OF_NOBODY
            more_keys = join_keys(self._keys.keys_of(session)[attachment.num_keys :])
            self.send(attachment.link, Close(session.uid, more_keys))

    def forget(self, session: Session) -> str | None:
        """The session ends or gives up its pages. Returns the endpoint of the drafter that it was attached to."""
        attachment = self.attachments.get(session.uid)
        self._lost.pop(session.uid, None)
        self.detach(session)
        self._keys.forget(session.uid)
        return None if attachment is None else attachment.link.endpoint
