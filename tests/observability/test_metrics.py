from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from dspine_cluster.observability.metrics import VerifierMetrics


def test_positions_are_counted_up_to_what_was_verified_and_accepted() -> None:
    metrics = VerifierMetrics()
    metrics.note_rounds([(15, 3, 1, 2)])
    metrics.note_rounds([(15, 2, 2, 3)])
    figures = metrics.snapshot()
    verified = [figures[f"verified_tokens_per_position_total{{position={j}}}"] for j in (1, 2, 3)]
    accepted = [figures[f"accepted_tokens_per_position_total{{position={j}}}"] for j in (1, 2)]
    assert (verified, accepted) == ([2, 2, 1], [2, 1])
    assert figures["verified_tokens_total"] == sum(verified)
    assert figures["accepted_tokens_total"] == sum(accepted)
    assert figures["committed_tokens_total"] == 5


def test_drafted_rounds_are_counted_by_verify_length() -> None:
    metrics = VerifierMetrics()
    for num_proposed, num_verified in ((15, 3), (15, 0), (15, 3), (0, 0)):
        metrics.note_rounds([(num_proposed, num_verified, 0, 1)])
    figures = metrics.snapshot()
    assert (figures["rounds_total"], figures["drafted_rounds_total"]) == (4, 3)
    assert (figures["verify_length_bucket{le=0.0}"], figures["verify_length_bucket{le=3.0}"]) == (1, 3)
    assert (figures["verify_length_sum"], figures["verify_length_count"]) == (6, 3)


@pytest.fixture
def frequent_thread_switches() -> Iterator[None]:
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval_s)


@pytest.mark.usefixtures("frequent_thread_switches")
def test_a_snapshot_can_be_taken_while_new_positions_are_counted() -> None:
    metrics = VerifierMetrics()

    def count() -> None:
        for length in range(1500):
            metrics.note_rounds([(length, length, length, length)])

    counting = threading.Thread(target=count)
    counting.start()
    while counting.is_alive():
        metrics.snapshot()
    counting.join()
