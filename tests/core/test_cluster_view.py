from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.cluster_view import ClusterView, DrafterChoice, DrafterRecord


def record(name: str, node: str = "n1", *, has_remote: bool = True, epoch: str = "e") -> DrafterRecord:
    remote = (f"tcp:{node}:{name}",) if has_remote else ()
    return DrafterRecord(name, node, (f"unix:/{name}",), remote, epoch)


def test_a_verifier_uses_the_drafters_of_its_node() -> None:
    view = ClusterView(0.0)
    for name, node in (("a", "n1"), ("b", "n2"), ("c", "n1")):
        view.register(record(name, node), 0.0)
    assert view.choose("n1", 1.0).endpoints == ("unix:/a", "unix:/c")


def test_without_one_on_its_node_it_uses_those_of_others_that_can_be_reached() -> None:
    view = ClusterView(0.0)
    view.register(record("a", "n1"), 0.0)
    view.register(record("b", "n2", has_remote=False), 0.0)
    assert view.choose("n3", 1.0).endpoints == ("tcp:n1:a",)


def test_a_silent_drafter_disappears() -> None:
    view = ClusterView(0.0, timeout_s=3.0)
    view.register(record("a"), 0.0)
    view.register(record("b"), 0.0)
    assert view.heartbeat("b", 2.0)
    assert [known.replica_id for known in view.drafters(3.5)] == ["b"]


def test_a_forgotten_drafter_is_told_to_register() -> None:
    view = ClusterView(0.0, timeout_s=3.0)
    view.register(record("a"), 0.0)
    assert not view.heartbeat("a", 3.5)
    view.register(record("a"), 3.6)
    assert view.heartbeat("a", 4.0)


def test_a_drafter_that_stops_is_gone_at_once() -> None:
    view = ClusterView(0.0)
    view.register(record("a"), 0.0)
    view.remove("a")
    view.remove("a")
    assert view.drafters(0.0) == []


def test_a_restarted_drafter_replaces_its_record() -> None:
    view = ClusterView(0.0)
    view.register(record("a", epoch="1"), 0.0)
    view.register(record("a", epoch="2"), 1.0)
    assert [known.epoch for known in view.drafters(1.0)] == ["2"]


def test_a_new_directory_takes_no_drafter_away() -> None:
    view = ClusterView(100.0, timeout_s=3.0)
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
