from __future__ import annotations

from dspine_cluster.core.cluster_records import ReplicaLoad
from dspine_cluster.verifier.load_report import LoadReport


def test_a_request_counts_before_the_loop_has_taken_it_in() -> None:
    report = LoadReport()
    report.update(ReplicaLoad(running_requests=2, waiting_requests=1, queued_tokens=100), [])
    report.note_arrival(7, "r", 50)
    load, admitted = report.take()
    assert load == ReplicaLoad(running_requests=2, waiting_requests=2, queued_tokens=150)
    assert admitted == ("r",)


def test_a_request_that_the_loop_counts_is_not_counted_twice() -> None:
    report = LoadReport()
    report.note_arrival(7, "r", 50)
    load = ReplicaLoad(waiting_requests=1, queued_tokens=30)
    report.update(load, [7])
    assert report.take() == (load, ("r",))


def test_a_request_is_admitted_once_even_if_it_has_ended_meanwhile() -> None:
    report = LoadReport()
    report.note_arrival(7, "r", 50)
    report.update(ReplicaLoad(), [7])
    assert report.take() == (ReplicaLoad(), ("r",))
    assert report.take() == (ReplicaLoad(), ())
