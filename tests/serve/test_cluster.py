"""Two verifiers and two drafters on two nodes, 16 streams, and what goes wrong meanwhile."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

import psutil
import pytest

from dspine_cluster.bench.live_trace import LiveSettings
from dspine_serve.held import held, total
from dspine_serve.live_routing import measure_live
from dspine_serve.local_cluster import LocalCluster, Replica, local_cluster, small_args, wait_until
from tests.serve.stories import Story, make_stories
from tests.serve.streams import Burst, streaming

pytestmark = [
    pytest.mark.serve,
    pytest.mark.xdist_group("cluster"),
    pytest.mark.timeout(900),  # nodes and replicas start again, one after the other
]
NUM_STREAMS = 16
DRAIN_S = 120.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with local_cluster(small_args(2), num_workers=2) as running:
        yield running


@pytest.fixture
def whole(cluster: LocalCluster) -> Iterator[LocalCluster]:
    """The cluster with all its replicas. Nothing is held when the test has ended and all are there again."""
    cluster.wait_until_whole()
    yield cluster
    cluster.wait_until_whole()
    wait_until(lambda: not held(cluster), DRAIN_S)


@pytest.fixture(scope="module")
def stories() -> list[Story]:
    return make_stories(NUM_STREAMS)


def differing(burst: Burst, stories: list[Story]) -> list[tuple[Story, str]]:
    """What was told otherwise than by plain decoding, once all streams have ended."""
    told = zip(stories, burst.texts(), strict=True)
    return [(story, text) for story, text in told if text != story.text]


def busiest_verifier(cluster: LocalCluster) -> Replica:
    ongoing = cluster.ongoing_requests("Verifier")
    verifier = max(ongoing, key=lambda replica: ongoing[replica])
    assert ongoing[verifier], "all streams have ended already"
    return verifier


def busiest_drafter(cluster: LocalCluster) -> Replica:
    node_id = busiest_verifier(cluster).node_id
    [drafter] = [replica for replica in cluster.replicas("Drafter") if replica.node_id == node_id]
    return drafter


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):  # Serve may have given up waiting for it
            os.kill(pid, signal.SIGCONT)


@contextmanager
def signalled(cluster: LocalCluster, node_ids: Iterable[str], number: signal.Signals) -> Iterator[None]:
    """All processes of some workers get a signal. Afterwards there are other workers in their place."""
    raylets = {node_id: psutil.Process(cluster.raylet_pid(node_id)) for node_id in node_ids}
    processes = [p for raylet in raylets.values() for p in (raylet, *raylet.children(recursive=True))]
    try:
        for process in processes:
            process.send_signal(number)
        yield
    finally:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for node_id in raylets:
            cluster.remove_worker(node_id)
            cluster.add_worker()


def test_streams_are_placed_on_verifiers_with_a_drafter_on_their_node(
    whole: LocalCluster, stories: list[Story]
) -> None:
    with streaming(whole.url, stories) as burst:
        assert differing(burst, stories) == []
    placed = total(whole, "Ingress")
    num_placements = sum(count for name, count in placed.items() if name.startswith("placements_total"))
    assert num_placements >= NUM_STREAMS
    assert placed["colocated_placements_total"] >= 0.95 * num_placements
    assert all(stats["accepted_tokens_total"] > 0 for stats in whole.stats("Verifier"))


def test_conversations_find_their_prefix_on_the_verifier_that_had_them_before(whole: LocalCluster) -> None:
    report = measure_live(whole, LiveSettings(num_conversations=6, conversations_per_s=3.0, max_tokens=16))
    assert report["colocated_ratio"] >= 0.95
    assert report["cached_token_ratio"] > 0.5
    assert 0.0 < report["ttft_p50_s"] <= report["ttft_p99_s"]


def test_a_killed_drafter_changes_no_text(whole: LocalCluster, stories: list[Story]) -> None:
    lost = total(whole, "Verifier")["draft_fallback_total{reason=lost}"]
    with streaming(whole.url, stories) as burst:
        os.kill(busiest_drafter(whole).pid, signal.SIGKILL)
        assert differing(burst, stories) == []
    assert total(whole, "Verifier")["draft_fallback_total{reason=lost}"] > lost


def test_a_drafter_that_hangs_changes_no_text(whole: LocalCluster, stories: list[Story]) -> None:
    with streaming(whole.url, stories) as burst, stopped(busiest_drafter(whole).pid):
        assert differing(burst, stories) == []


def test_streams_of_a_killed_verifier_go_on_elsewhere(whole: LocalCluster, stories: list[Story]) -> None:
    resumed = total(whole, "Ingress")["resumed_streams_total"]
    with streaming(whole.url, stories) as burst:
        os.kill(busiest_verifier(whole).pid, signal.SIGKILL)
        assert differing(burst, stories) == []
    assert total(whole, "Ingress")["resumed_streams_total"] > resumed


def test_streams_of_a_verifier_that_hangs_go_on_elsewhere(whole: LocalCluster, stories: list[Story]) -> None:
    resumed = total(whole, "Ingress")["resumed_streams_total"]
    with streaming(whole.url, stories) as burst, stopped(busiest_verifier(whole).pid):
        assert differing(burst, stories) == []
    assert total(whole, "Ingress")["resumed_streams_total"] > resumed


def test_streams_go_on_with_the_last_picture_when_the_directory_is_killed(
    whole: LocalCluster, stories: list[Story]
) -> None:
    [directory] = whole.replicas("Directory")
    os.kill(directory.pid, signal.SIGKILL)
    with streaming(whole.url, stories) as burst:
        assert differing(burst, stories) == []
    wait_until(lambda: bool(whole.replicas("Directory")), DRAIN_S)
    assert whole.replicas("Directory") != [directory]


def test_streams_of_a_lost_node_go_on_on_the_other(whole: LocalCluster, stories: list[Story]) -> None:
    resumed = total(whole, "Ingress")["resumed_streams_total"]
    with streaming(whole.url, stories) as burst:
        node_id = busiest_verifier(whole).node_id
        with signalled(whole, [node_id], signal.SIGKILL):
            assert differing(burst, stories) == []
    assert total(whole, "Ingress")["resumed_streams_total"] > resumed


def test_streams_of_a_node_that_hangs_go_on_on_the_other(whole: LocalCluster, stories: list[Story]) -> None:
    resumed = total(whole, "Ingress")["resumed_streams_total"]
    with streaming(whole.url, stories) as burst:
        node_id = busiest_verifier(whole).node_id
        with signalled(whole, [node_id], signal.SIGSTOP):
            assert differing(burst, stories) == []
    assert total(whole, "Ingress")["resumed_streams_total"] > resumed


def test_streams_end_with_an_error_event_when_no_verifier_is_left(
    whole: LocalCluster, stories: list[Story]
) -> None:
    with streaming(whole.url, stories) as burst:
        node_ids = {replica.node_id for replica in whole.ongoing_requests("Verifier")}
        with signalled(whole, node_ids, signal.SIGKILL):
            errors = burst.errors()
    assert {error.code for error in errors} == {"engine_stopped"}
