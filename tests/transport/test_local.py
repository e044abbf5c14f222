"""The in-process pair: order, credits, readiness and the end."""

from __future__ import annotations

import numpy as np
import pytest

from dspine_cluster.errors import ChannelClosedError
from dspine_cluster.transport.channel import Channel, ChannelLimits
from dspine_cluster.transport.local import pair
from dspine_cluster.transport.messages import PROTOCOL_VERSION, Close, Features, Hello, Message, Open

VERIFIER = Hello(PROTOCOL_VERSION, "verifier", "t", "d", "k", "1")
DRAFTER = Hello(PROTOCOL_VERSION, "drafter", "t", "d", "k", "2")


def features(num_bytes: int) -> Features:
    return Features(1, 0, np.zeros((num_bytes // 4, 4), np.uint8))


def small_pair() -> tuple[Channel, Channel]:
    return pair(VERIFIER, DRAFTER, ChannelLimits(credit_bytes=1024))


def test_each_side_sees_what_the_other_said() -> None:
    verifier, drafter = small_pair()
    assert (verifier.peer, drafter.peer) == (DRAFTER, VERIFIER)


def test_messages_arrive_in_order_in_both_directions() -> None:
    verifier, drafter = small_pair()
    sent: list[Message] = [Open(1), features(8), Close(1)]
    for message in sent:
        assert verifier.send(message)
        assert drafter.send(message)
    assert drafter.receive() == sent
    assert verifier.receive() == sent
    assert verifier.receive() == []


def test_features_beyond_the_credits_are_refused_until_they_are_received() -> None:
    verifier, drafter = small_pair()
    assert verifier.send(features(1000))
    assert verifier.free_credit_bytes == 24
    assert not verifier.send(features(28))
    assert verifier.send(Open(2))
    drafter.receive()
    assert verifier.send(features(1024))


def test_features_larger_than_all_credits_are_never_taken() -> None:
    verifier, _ = small_pair()
    assert not verifier.send(features(1028))


@pytest.mark.parametrize("closer", [0, 1])
def test_what_arrived_before_the_end_is_received_before_the_end(closer: int) -> None:
    channels = small_pair()
    verifier, drafter = channels
    verifier.send(Open(1))
    channels[closer].close()
    assert drafter.receive() == [Open(1)]
    for channel in channels:
        with pytest.raises(ChannelClosedError):
            channel.receive()
        with pytest.raises(ChannelClosedError):
            channel.send(Open(2))


def test_the_callback_reports_messages_and_the_end_also_when_set_late() -> None:
    verifier, drafter = small_pair()
    calls: list[str] = []
    drafter.set_ready_callback(lambda: calls.append("early"))
    assert calls == []
    verifier.send(Open(1))
    assert calls == ["early"]
    drafter.set_ready_callback(lambda: calls.append("late"))
    assert calls == ["early", "late"]
    drafter.receive()
    verifier.close()
    assert calls == ["early", "late", "late"]
