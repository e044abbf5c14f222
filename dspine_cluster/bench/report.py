"""Reports on the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table


def print_acceptance(console: Console, report: dict[str, Any]) -> None:
    """A row a task and drafter, then the pooled figures. `length` is the acceptance length, `differ` counts the prompts
    whose greedy text is not plain decoding's."""
    table = Table("task", "drafter", box=None)
    for name in ("prompts", "rounds", "length", "tokens/s", "over none", "differ"):
        table.add_column(name, justify="right")
    for row in report["results"]:
        mismatches = row["greedy_mismatches"]
        table.add_row(
            row["task"],
            row["drafter"],
            str(row["prompts"]),
            str(row["rounds"]),
            f"{row['acceptance_length']:.2f}",
            f"{row['tokens_per_s']:.0f}",
            f"{row['speedup_over_none']:.2f}",
            "-" if mismatches is None else str(mismatches),
        )
    console.print(table)
    for drafter, pooled in report["pooled"].items():
        low, high = pooled["ci95"]
        mean = report["mean"][drafter]["acceptance_length"]
        console.print(
            f"{drafter}: pooled acceptance length {pooled['acceptance_length']:.2f} "
            f"(95 % interval {low:.2f} to {high:.2f}), mean over tasks {mean:.2f}"
        )
    for names, ratio in report["pooled_ratios"].items():
        low, high = ratio["ci95"]
        console.print(f"{names}: pooled ratio {ratio['ratio']:.3f} (95 % interval {low:.3f} to {high:.3f})")


def print_speedup(console: Console, report: dict[str, Any]) -> None:
    """A row a concurrency. `decode` is the speed-up from first tokens to last ones, `length` the acceptance length,
    `verified` the mean verify length, both over all rounds, of which `drafted` had proposals; `differ` counts texts
    that are not plain decoding's. The interval is that of the speed-up, turns resampled."""
    tasks = report["workload"]["tasks"]
    left_out = report["workload"].get("left_out", {})
    console.print(", ".join([*tasks, *left_out.values()]))
    table = Table("at a time", box=None)
    columns = (
        "prompts",
        "tokens/s",
        "none",
        "speedup",
        "95 %",
        "decode",
        "length",
        "verified",
        "drafted",
        "differ",
    )
    for name in columns:
        table.add_column(name, justify="right")
    ratios = ("decode_speedup", "acceptance_length", "verify_length_mean", "drafted_rounds_ratio")
    for row in report["results"]:
        table.add_row(
            str(row["concurrency"]),
            str(row["prompts"]),
            *(f"{row[name]:.0f}" for name in ("tokens_per_s", "tokens_per_s_none")),
            f"{row['speedup']:.2f}",
            "{:.2f} to {:.2f}".format(*row["speedup_ci95"]),
            *(f"{row[name]:.2f}" for name in ratios),
            str(row["greedy_mismatches"]),
        )
    console.print(table)


def print_routing(console: Console, report: dict[str, Any]) -> None:
    """A row a cell of the grid and policy, then how joint placement stands where it stands worst."""
    table = Table("policy", box=None)
    for name in ("load", "cache", "requests", "cached", "TTFT p50 ms", "p99 ms", "imbalance"):
        table.add_column(name, justify="right")
    for row in report["simulated"]:
        table.add_row(
            row["policy"],
            f"{row['load']:g}",
            str(row["cache"]),
            str(row["num_requests"]),
            f"{row['cached_token_ratio']:.3f}",
            f"{1000 * row['ttft_p50_s']:.0f}",
            f"{1000 * row['ttft_p99_s']:.0f}",
            f"{row['imbalance']:.2f}",
        )
    console.print(table)
    worst = report["comparison"]
    console.print(
        f"joint placement, worst cell: cached tokens {worst['min_cached_over_power_of_two']:.2f} times those of power "
        f"of two, {worst['min_cached_over_sticky']:.2f} times those of sticky hashing; p99 time to first token "
        f"{worst['max_ttft_p99_over_better_rival']:.2f} times that of the better of both"
    )
    placement = report["placement"]
    console.print(
        f"placing a request among {placement['num_verifiers']:.0f} verifiers: median {placement['p50_us']:.0f} us, "
        f"p99 {placement['p99_us']:.0f} us"
    )
    live = report.get("live")
    if live is None:
        console.print("not measured: live routing, which needs --live, ray and dspine_serve")
        return
    console.print(
        f"live on two nodes: {live['num_requests']} requests, co-located {live['colocated_ratio']:.3f}, cached tokens "
        f"{live['cached_token_ratio']:.3f}, time to first token p50 {1000 * live['ttft_p50_s']:.0f} ms, "
        f"p99 {1000 * live['ttft_p99_s']:.0f} ms"
    )


def print_turns(console: Console, report: dict[str, Any]) -> None:
    """A row a mode of the template, then both; `common` are the tokens that prompts share with earlier turns."""
    table = Table("thinking", box=None)
    for name in ("turns", "prompts", "common", "cached", "differ", "length", "cold", "TTFT p50 ms", "cold"):
        table.add_column(name, justify="right")
    for row in [*report["results"], report["pooled"]]:
        table.add_row(
            {True: "on", False: "off", None: "both"}[row.get("thinking")],
            *(
                str(row[n])
                for n in ("turns", "prompt_tokens", "common_tokens", "cached_tokens", "texts_that_differ")
            ),
            *(f"{row[n]:.3f}" for n in ("acceptance_length", "acceptance_length_cold")),
            *(f"{1000 * row[n]:.0f}" for n in ("ttft_p50_s", "ttft_cold_p50_s")),
        )
    console.print(table)
    pooled = report["pooled"]
    low, high = pooled["acceptance_ratio_ci95"]
    console.print(
        f"cached of what a turn has in common less 64 tokens: {pooled['min_cached_over_common_less_64']:.3f} at least; "
        f"acceptance length over that of cold runs: {pooled['acceptance_ratio']:.3f} "
        f"(95 % interval {low:.3f} to {high:.3f})"
    )


def print_drafter_loss(console: Console, report: dict[str, Any]) -> None:
    """A row a phase; in `moving` some requests or all have lost their drafter and are not drafted for yet."""
    table = Table("phase", box=None)
    for name in ("steps", "p50 ms", "max ms", "tokens/s"):
        table.add_column(name, justify="right")
    for phase in ("plain", "drafted", "moving", "drafted_again"):
        row = report[phase]
        table.add_row(
            phase,
            str(len(row["steps_s"])),
            *(f"{1000 * row[name]:.0f}" for name in ("step_p50_s", "step_max_s")),
            f"{row['tokens_per_s']:.0f}",
        )
    console.print(table)
    console.print(
        f"{report['requests']} requests lost their drafter; the longest step until all had another one took "
        f"{report['max_moving_over_drafted_median']:.2f} times the median before"
    )


def print_overhead(console: Console, report: dict[str, Any]) -> None:
    """A row a side and number of requests, then what the socket adds."""
    table = Table("side", box=None)
    for name in ("requests", "host ms", "p99", "wall ms", "beside sampling", "with sampling", "p99"):
        table.add_column(name, justify="right")
    for row in report["results"]:
        figures = (
            "host_ms_median",
            "host_ms_p99",
            "wall_ms_median",
            "host_ms_median_beside_sampling",
            "host_ms_median_with_sampling",
            "host_ms_p99_with_sampling",
        )
        table.add_row(
            row["side"],
            str(row["requests"]),
            *(f"{row[name]:.2f}" for name in figures),
        )
    console.print(table)
    for row in report["channel"]:
        console.print(
            f"{row['requests']} requests x {row['tokens']} tokens x width {row['width']}: the socket adds "
            f"{row['added_ms_median']:.2f} ms to {row['local_ms_median']:.2f} ms"
        )


def print_http(console: Console, report: dict[str, Any]) -> None:
    """What `live_http.measure` returns."""
    console.print(
        f"{report['streams']} streams: {report['events_per_s']:.0f} events/s, bare {report['events_per_s_bare']:.0f}, "
        f"{report['ratio']:.2f} of it\n"
        f"time to the first byte: {report['ttfb_added_ms_p50']:.1f} ms more than bare (99th percentile "
        f"{report['ttfb_added_ms_p99']:.1f} ms)\n"
        f"events of each stream when the first one ended: {report['early_events_min']} to {report['early_events_max']}"
    )


def print_connections(console: Console, report: dict[str, Any]) -> None:
    """What `live_connections.measure` returns."""
    left = {**report["leaks"], **report["grown"]}
    console.print(
        f"{report['connections']} streams, {report['num_left'] / report['rounds']:.0f} of which were left: "
        f"99th percentile of the others {report['p99_s']:.2f} s, without that {report['p99_s_without_drops']:.2f} s, "
        f"ratio {report['p99_ratio']:.2f}\n"
        f"{report['num_failed']} failed; held after {report['drain_s']:.1f} s: "
        f"{', '.join(f'{value:g} {name}' for name, value in left.items()) or 'nothing'}"
    )
