from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.cluster_records import (
    IDLE,
    Cursor,
    DrafterRecord,
    Fingerprints,
    Removal,
    ReplicaDelta,
    Roster,
    VerifierRecord,
)
from dspine_cluster.core.cluster_view import ClusterView, DeltaReply, DrafterChoice
from tests.snapshots import cached_keys


def record(name: str, node: str = "n1", *, has_remote: bool = True, epoch: str = "e") -> DrafterRecord:
    remote = (f"tcp:{node}:{name}",) if has_remote else ()
    return DrafterRecord(name, node, (f"unix:/{name}",), remote, epoch)


def test_a_verifier_uses_the_drafters_of_its_node() -> None:
    view = ClusterView(0.0, epoch="d")
    for name, node in (("a", "n1"), ("b", "n2"), ("c", "n1")):
        view.register(record(name, node), 0.0)
    assert view.choose("n1", 1.0).endpoints == ("unix:/a", "unix:/c")


def test_without_one_on_its_node_it_uses_those_of_others_that_can_be_reached() -> None:
    view = ClusterView(0.0, epoch="d")
    view.register(record("a", "n1"), 0.0)
    view.register(record("b", "n2", has_remote=False), 0.0)
    assert view.choose("n3", 1.0).endpoints == ("tcp:n1:a",)


def test_a_silent_drafter_disappears() -> None:
    view = ClusterView(0.0, timeout_s=3.0, epoch="d")
    view.register(record("a"), 0.0)
    view.register(record("b"), 0.0)
    assert view.heartbeat("b", 2.0)
    assert [known.replica_id for known in view.drafters(3.5)] == ["b"]


def test_a_forgotten_drafter_is_told_to_register() -> None:
    view = ClusterView(0.0, timeout_s=3.0, epoch="d")
    view.register(record("a"), 0.0)
    assert not view.heartbeat("a", 3.5)
    view.register(record("a"), 3.6)
    assert view.heartbeat("a", 4.0)


def test_a_drafter_that_stops_is_gone_at_once() -> None:
    view = ClusterView(0.0, epoch="d")
    view.register(record("a"), 0.0)
    view.remove("a")
    view.remove("a")
    assert view.drafters(0.0) == []


def test_a_restarted_drafter_replaces_its_record() -> None:
    view = ClusterView(0.0, epoch="d")
    view.register(record("a", epoch="1"), 0.0)
    view.register(record("a", epoch="2"), 1.0)
    assert [known.epoch for known in view.drafters(1.0)] == ["2"]


def test_a_new_directory_takes_no_drafter_away() -> None:
    view = ClusterView(100.0, timeout_s=3.0, epoch="d")
    view.register(record("b"), 100.5)
    assert view.choose("n1", 101.0).merged_with(("unix:/a",)) == ("unix:/a", "unix:/b")
    view.heartbeat("b", 102.5)
    assert view.choose("n1", 103.0).merged_with(("unix:/a",)) == ("unix:/b",)


@given(
    known=st.lists(st.sampled_from("abcd"), unique=True), seen=st.lists(st.sampled_from("abcd"), unique=True)
)
def test_merging_never_names_an_endpoint_twice(known: list[str], seen: list[str]) -> None:
    merged = DrafterChoice(tuple(seen), is_complete=False).merged_with(known)
    assert sorted(merged) == sorted({*known, *seen})


def delta(
    sequence: int, *added: bytes, removed: tuple[bytes, ...] = (), snapshot: bool = False, epoch: str = "e"
) -> ReplicaDelta:
    return ReplicaDelta("v", epoch, sequence, IDLE, added, removed, is_snapshot=snapshot)


def with_verifier() -> ClusterView:
    view = ClusterView(0.0, epoch="d")
    view.register(VerifierRecord("v", "n1", "e"), 0.0)
    assert view.apply(delta(1, b"a", snapshot=True), 0.0) is DeltaReply.OK
    return view


def test_a_gap_in_the_deltas_asks_for_a_snapshot() -> None:
    view = with_verifier()
    assert view.apply(delta(3, b"c"), 0.0) is DeltaReply.SNAPSHOT
    assert cached_keys(view, "v") == {b"a"}
    assert view.apply(delta(4, b"b", b"c", snapshot=True), 0.0) is DeltaReply.OK
    assert view.apply(delta(5, b"d", removed=(b"b",)), 0.0) is DeltaReply.OK
    assert cached_keys(view, "v") == {b"c", b"d"}


def test_a_delta_that_comes_twice_counts_once() -> None:
    view = with_verifier()
    view.apply(delta(2, b"b"), 0.0)
    before = view.updates_since(Cursor(), 0.0)
    assert view.apply(delta(2, b"b"), 0.0) is DeltaReply.OK
    assert view.updates_since(Cursor(), 0.0) == before


def test_deltas_before_a_snapshot_ask_for_one() -> None:
    view = ClusterView(0.0, epoch="d")
    view.register(VerifierRecord("v", "n1", "e"), 0.0)
    assert view.apply(delta(1, b"a"), 0.0) is DeltaReply.SNAPSHOT


def test_an_unknown_or_restarted_replica_is_told_to_register() -> None:
    view = with_verifier()
    assert view.apply(delta(2, b"b", epoch="f"), 0.0) is DeltaReply.REGISTER
    view.remove("v")
    assert view.apply(delta(2, b"b"), 0.0) is DeltaReply.REGISTER


def test_a_restarted_replica_has_nothing_cached() -> None:
    view = with_verifier()
    view.register(VerifierRecord("v", "n1", "f"), 1.0)
    assert cached_keys(view, "v") == set()


def test_a_delta_says_that_its_replica_lives() -> None:
    view = with_verifier()
    view.apply(delta(2), 2.0)
    assert [known.replica_id for known in view.records(4.0)] == ["v"]
    assert view.records(5.5) == []


def test_a_follower_hears_of_the_dead() -> None:
    view = with_verifier()
    view.register(record("a"), 3.0)
    cursor = view.updates_since(Cursor(), 3.0).cursor
    view.heartbeat("a", 3.5)
    assert Removal("v") in view.updates_since(cursor, 3.5).events


def test_a_follower_of_another_directory_gets_a_snapshot() -> None:
    view = with_verifier()
    view.apply(delta(2, b"b", removed=(b"a",)), 0.0)
    updates = view.updates_since(Cursor("another", 3), 0.0)
    assert updates.events == (VerifierRecord("v", "n1", "e"), delta(2, b"b", snapshot=True))
    assert view.updates_since(updates.cursor, 0.0).events == ()


def test_a_follower_that_fell_behind_gets_a_snapshot() -> None:
    view = ClusterView(0.0, epoch="d", max_events=3)
    view.register(VerifierRecord("v", "n1", "e"), 0.0)
    cursor = view.updates_since(Cursor(), 0.0).cursor
    for sequence in range(1, 6):
        view.apply(delta(sequence, bytes([sequence]), snapshot=sequence == 1), 0.0)
    events = view.updates_since(cursor, 0.0).events
    assert events[0] == VerifierRecord("v", "n1", "e")
    assert isinstance(events[1], ReplicaDelta)
    assert set(events[1].added) == {bytes([sequence]) for sequence in range(1, 6)}


def test_a_new_directory_says_who_lives_only_when_all_had_time_to_register() -> None:
    view = ClusterView(100.0, timeout_s=3.0, epoch="d")
    view.register(record("a"), 100.5)
    early = view.updates_since(Cursor(), 101.0)
    assert not any(isinstance(event, Roster) for event in early.events)
    view.heartbeat("a", 102.0)
    assert view.updates_since(early.cursor, 103.0).events == (Roster(frozenset({"a"})),)
    assert view.updates_since(Cursor("another", 1), 103.0).events[-1] == Roster(frozenset({"a"}))


def test_a_verifier_uses_drafters_of_its_own_models_only() -> None:
    view = ClusterView(0.0, epoch="d")
    ours, theirs = Fingerprints("t", "d1", "k"), Fingerprints("t", "d2", "k")
    for name, fingerprints in (("a", ours), ("b", theirs)):
        view.register(DrafterRecord(name, "n1", (f"unix:/{name}",), (), "e", fingerprints), 0.0)
    assert view.choose("n1", 0.0, theirs).endpoints == ("unix:/b",)


def test_a_delta_that_changes_nothing_is_no_event_but_a_sign_of_life() -> None:
    view = with_verifier()
    num_events = view.num_events
    assert view.apply(delta(2), 2.0) is DeltaReply.OK
    assert view.num_events == num_events
    assert view.apply(delta(3, b"b"), 2.5) is DeltaReply.OK
    assert view.num_events == num_events + 1
    assert [known.replica_id for known in view.records(5.0)] == ["v"]


def test_the_roster_changes_with_records_and_removals_and_when_it_is_complete() -> None:
    view = ClusterView(0.0, timeout_s=3.0, epoch="d")
    view.register(VerifierRecord("v", "n1", "e"), 0.0)
    view.apply(delta(1, b"a", snapshot=True), 0.0)
    assert view.num_roster_changes == 1
    view.tick(2.0)
    assert view.num_roster_changes == 1
    view.tick(3.0)
    assert view.num_roster_changes == 2
    view.tick(3.5)
    assert view.num_roster_changes == 3
