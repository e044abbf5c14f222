"""The queue of arrived messages."""

from __future__ import annotations

import numpy as np
import pytest

from dspine_cluster.errors import ChannelClosedError
from dspine_cluster.transport.inbox import Inbox
from dspine_cluster.transport.messages import Close, Features


def test_taking_empties_the_queue_and_tells_what_it_held() -> None:
    inbox = Inbox()
    features = Features(1, 0, np.zeros((2, 8), np.uint8))
    inbox.put([features], 100)
    inbox.put([Close(1)], 20)
    assert (inbox.num_bytes, inbox.features_bytes) == (120, 16)
    assert inbox.take() == ([features, Close(1)], 120, 16)
    assert inbox.take() == ([], 0, 0)
    assert (inbox.num_bytes, inbox.features_bytes) == (0, 0)


def test_nothing_arrives_after_the_end_and_the_first_reason_stays() -> None:
    inbox = Inbox()
    assert inbox.close("first")
    assert not inbox.close("second")
    inbox.put([Close(1)], 0)
    with pytest.raises(ChannelClosedError, match="first"):
        inbox.take()


def test_the_end_is_reported_once_more_when_the_messages_before_it_are_taken() -> None:
    inbox = Inbox()
    inbox.put([Close(1)], 0)
    inbox.close("gone")
    calls: list[int] = []
    inbox.set_callback(lambda: calls.append(1))
    calls.clear()
    inbox.take()
    assert calls == [1]
