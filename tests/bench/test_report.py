from __future__ import annotations

from typing import Any

from rich.console import Console

from dspine_cluster.bench.report import print_connections, print_routing

REPORT: dict[str, Any] = {
    "simulated": [],
    "comparison": {
        "min_cached_over_power_of_two": 1.5,
        "min_cached_over_sticky": 1.0,
        "max_ttft_p99_over_better_rival": 0.9,
    },
    "placement": {"num_verifiers": 1000.0, "p50_us": 40.0, "p99_us": 90.0},
}
LIVE = {
    "num_requests": 70,
    "colocated_ratio": 0.987,
    "cached_token_ratio": 0.61,
    "ttft_p50_s": 0.12,
    "ttft_p99_s": 0.4,
}


def printed(report: dict[str, Any]) -> str:
    console = Console(record=True, width=200)
    print_routing(console, report)
    return console.export_text()


def test_a_routing_report_tells_how_it_went_live() -> None:
    assert "live on two nodes: 70 requests, co-located 0.987" in printed({**REPORT, "live": LIVE})


def test_a_routing_report_without_the_live_part_says_so() -> None:
    assert "not measured: live routing" in printed(REPORT)


def test_a_report_of_connections_tells_what_is_held_afterwards() -> None:
    report = {
        "connections": 8,
        "rounds": 2,
        "num_left": 7,
        "num_failed": 0,
        "p99_s": 1.5,
        "p99_s_without_drops": 1.0,
        "p99_ratio": 1.5,
        "drain_s": 2.0,
    }

    def told(leaks: dict[str, float], grown: dict[str, float]) -> str:
        console = Console(record=True, width=200)
        print_connections(console, {**report, "leaks": leaks, "grown": grown})
        return console.export_text()

    assert "ratio 1.50" in told({}, {})
    assert "held after 2.0 s: nothing" in told({}, {})
    assert "0.5 verifier pages, 3 open files" in told({"verifier pages": 0.5}, {"open files": 3})
