from __future__ import annotations

from dspine_cluster.core.cluster_records import (
    ClusterEvent,
    Cursor,
    DrafterRecord,
    Removal,
    ReplicaDelta,
    ReplicaLoad,
    Roster,
    VerifierNews,
    VerifierRecord,
)
from dspine_cluster.core.cluster_status import ClusterStatus, StatusBoard
from dspine_cluster.core.cluster_view import ClusterView
from dspine_cluster.core.verifier_figures import VerifierFigures

VERIFIER = VerifierRecord("v", "n1", "e1")
DRAFTER = DrafterRecord("d", "n1", ("unix:/d",), ("tcp:d:1",), "e1")


def news(tokens: int, *attached: tuple[str, int]) -> VerifierNews:
    return VerifierNews(VerifierFigures(committed_tokens=tokens, rounds=1), 0.5, attached)


def delta(
    sequence: int, told: VerifierNews | None = None, epoch: str = "e1", running: int = 0
) -> ReplicaDelta:
    return ReplicaDelta("v", epoch, sequence, ReplicaLoad(running), is_snapshot=sequence == 1, news=told)


def shown(*events: ClusterEvent, now_s: float = 0.0) -> ClusterStatus:
    board = StatusBoard()
    board.apply(events, now_s)
    return board.status(now_s)


def test_a_pair_is_a_verifier_and_the_drafter_whose_endpoint_it_uses() -> None:
    [verifier] = shown(VERIFIER, DRAFTER, delta(1, news(5, ("tcp:d:1", 3), ("unix:/gone", 1)))).verifiers
    assert verifier.requests_by_drafter == {"d": 3, "unix:/gone": 1}


def test_load_and_pages_are_those_told_last() -> None:
    [verifier] = shown(VERIFIER, delta(1, news(5)), delta(2, running=4)).verifiers
    assert (verifier.load.running_requests, verifier.page_usage_ratio) == (4, 0.5)
    assert verifier.total.committed_tokens == 5


def test_throughput_is_of_the_recent_past() -> None:
    board = StatusBoard()
    board.apply([VERIFIER, delta(1, news(100))], 0.0)
    board.apply([delta(2, news(160))], 4.0)
    assert board.status(6.0).verifiers[0].tokens_per_s == 10.0
    assert board.status(60.0).verifiers[0].tokens_per_s == 0.0


def test_a_restarted_verifier_begins_anew() -> None:
    restarted = VerifierRecord("v", "n1", "e2")
    [verifier] = shown(VERIFIER, delta(1, news(100)), restarted, delta(2, news(7))).verifiers
    assert verifier.total.committed_tokens == 0
    [verifier] = shown(VERIFIER, delta(1, news(100)), restarted, delta(1, news(7), "e2")).verifiers
    assert verifier.total.committed_tokens == 7


def test_a_verifier_that_says_its_record_again_keeps_its_figures() -> None:
    [verifier] = shown(VERIFIER, delta(1, news(100)), VERIFIER).verifiers
    assert verifier.total.committed_tokens == 100


def test_replicas_that_are_gone_are_not_shown() -> None:
    assert shown(VERIFIER, DRAFTER, Removal("v")).verifiers == ()
    assert [d.record for d in shown(VERIFIER, DRAFTER, Roster(frozenset(["d"]))).drafters] == [DRAFTER]


def test_who_begins_to_follow_later_sees_what_was_told_before() -> None:
    view = ClusterView(0.0, epoch="dir")
    view.register(VERIFIER, 0.0)
    view.apply(delta(1, news(5, ("unix:/d", 2))), 0.0)
    view.apply(delta(2, running=1), 0.0)
    board = StatusBoard()
    board.apply(view.updates_since(Cursor(), 0.5).events, 0.5)
    [verifier] = board.status(0.5).verifiers
    assert verifier.total.committed_tokens == 5
    assert verifier.requests_by_drafter == {"unix:/d": 2}
