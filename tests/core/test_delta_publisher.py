from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.cluster_records import IDLE, VerifierNews, VerifierRecord
from dspine_cluster.core.cluster_view import ClusterView, DeltaReply
from dspine_cluster.core.delta_publisher import DeltaPublisher
from tests.snapshots import cached_keys

keys = st.sets(st.sampled_from([bytes([i]) * 16 for i in range(6)]))


def test_news_are_told_once_and_again_with_a_snapshot() -> None:
    publisher, news = DeltaPublisher("a", "e"), VerifierNews(page_usage_ratio=0.5)
    assert publisher.make_delta(IDLE, news=news).news == news
    assert publisher.make_delta(IDLE).news is None
    publisher.restart()
    assert publisher.make_delta(IDLE).news == news


@given(st.lists(st.tuples(keys, keys, st.booleans())))
def test_lost_deltas_are_made_good(steps: list[tuple[set[bytes], set[bytes], bool]]) -> None:
    """Whatever is lost, the directory has everything after the next delta that arrives."""
    view = ClusterView(0.0, epoch="d")
    view.register(VerifierRecord("v", "n", "e"), 0.0)
    publisher = DeltaPublisher("v", "e")
    cached = set[bytes]()
    for added, removed, is_lost in [*steps, (set(), set(), False)]:
        cached = (cached - removed) | added
        delta = publisher.make_delta(IDLE, added, removed)
        if is_lost:
            publisher.restart()
        else:
            assert view.apply(delta, 0.0) is DeltaReply.OK
            assert cached_keys(view, "v") == cached


def test_what_was_admitted_is_told_again_when_it_may_have_been_lost() -> None:
    publisher = DeltaPublisher("v", "e")
    publisher.make_delta(IDLE, admitted=["r1"])
    publisher.restart()
    publisher.make_delta(IDLE, admitted=["r2"])
    publisher.restart()
    assert publisher.make_delta(IDLE, admitted=["r3"]).admitted == ("r1", "r2", "r3")
    assert publisher.make_delta(IDLE).admitted == ()
