from __future__ import annotations

from dspine_cluster.bench.placement import measure_placement


def test_it_times_every_placement() -> None:
    figures = measure_placement(num_verifiers=20, num_requests=120)
    assert (figures["num_verifiers"], figures["num_drafters"]) == (20, 10)
    assert 0.0 < figures["p50_us"] <= figures["p99_us"]
