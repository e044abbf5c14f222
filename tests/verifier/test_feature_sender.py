from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dspine_cluster.core.draft_pace import DraftPace
from dspine_cluster.core.session import Session
from dspine_cluster.transport.messages import FEATURES, Message
from dspine_cluster.verifier.asks import Asks
from dspine_cluster.verifier.attachments import Attachment, Link
from dspine_cluster.verifier.feature_sender import FeatureSender
from dspine_cluster.verifier.wanted import Wanted
from tests.verifier.harness import ScriptedChannel, make_request

ROW_BYTES = 4


class Source:
    """Has the features of everything."""

    def features_start(self, session: Session, end: int) -> int:
        return 0

    def read_features(
        self, sessions: Sequence[Session], starts: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.uint8]:
        return np.zeros((int(counts.sum()), ROW_BYTES), np.uint8)


class Channel(ScriptedChannel):
    """Takes no features while it is full."""

    def __init__(self) -> None:
        super().__init__(lambda item: None)
        self.is_full = False

    def send(self, message: Message, *, bulk: bool = False) -> bool:
        return not (self.is_full and isinstance(message, FEATURES)) and super().send(message)


def test_who_lacked_nothing_is_not_asked_for_when_the_channel_refuses_what_is_new() -> None:
    channel = Channel()
    link = Link("unix:/drafter", channel, DraftPace(2.0, 1.0, 3, 1.0), 0)
    sender = FeatureSender(Source(), row_bytes=ROW_BYTES, attach_tokens=64, repair_bytes_per_step=1 << 20)
    attachments = []
    for uid in range(2):
        channel.positions[uid] = set()
        session = Session(uid, make_request(list(range(1, 21))), arrival=uid)
        attachments.append(Attachment(session, link, 0, 0.0, 0, 0))
    wanted = Wanted()
    for attachment in attachments:
        wanted.add(attachment.session, 1)
    sender.start_step()

    def send_tails() -> bool:
        return sender.send_tails(Asks(link, attachments, wanted))

    send_tails()
    assert all(sender.has_tail(attachment) and attachment.settles() for attachment in attachments)
    for attachment in attachments:
        attachment.session.tokens += [7, 8, 9]
    channel.is_full = True
    assert not send_tails()
    assert not any(sender.has_tail(attachment) or attachment.settles() for attachment in attachments)
    channel.is_full = False
    send_tails()
    assert all(sender.has_tail(attachment) and attachment.settles() for attachment in attachments)
    assert channel.positions == {uid: set(range(22)) for uid in range(2)}
