from __future__ import annotations

import pytest

from dspine_cluster.bench.routing import Cell, RoutingSettings, compare, run_cell
from dspine_cluster.sim.cluster import POLICIES

SETTINGS = RoutingSettings(loads=(1.0,), caches=(50_000,), duration_s=12.0, num_verifiers=3)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_cell_reports_plausible_figures(policy: str) -> None:
    row = run_cell(SETTINGS, Cell(policy, 1.0, 50_000))
    assert (row["policy"], row["load"], row["cache"]) == (policy, 1.0, 50_000)
    assert 0.0 <= row["cached_token_ratio"] < 1.0
    assert 0.0 < row["ttft_p50_s"] <= row["ttft_p99_s"]
    assert 1.0 <= row["imbalance"] <= 3.0


def test_the_comparison_names_the_worst_cells() -> None:
    figures = {
        ("joint", 1): (0.8, 0.5),
        ("power_of_two", 1): (0.4, 1.0),
        ("sticky", 1): (0.7, 0.8),
        ("joint", 2): (0.9, 0.6),
        ("power_of_two", 2): (0.6, 0.5),
        ("sticky", 2): (1.0, 2.0),
    }
    rows = [
        {"policy": policy, "load": 1.0, "cache": cache, "cached_token_ratio": ratio, "ttft_p99_s": p99_s}
        for (policy, cache), (ratio, p99_s) in figures.items()
    ]
    worst = compare(rows)
    assert worst["min_cached_over_power_of_two"] == pytest.approx(0.9 / 0.6)
    assert worst["min_cached_over_sticky"] == pytest.approx(0.9)
    assert worst["max_ttft_p99_over_better_rival"] == pytest.approx(0.6 / 0.5)
