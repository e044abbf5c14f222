"""Reports on the terminal, and the acceptance report as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dspine_cluster.errors import ConfigError


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


def plot_acceptance(report: dict[str, Any], path: Path) -> None:
    """Acceptance rate by position and acceptance length by task, as the image that the path's ending names.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("--plot needs matplotlib: pip install 'dspine-cluster[plot]'") from error
    results = [row for row in report["results"] if row["drafter"] != "none"]
    drafters = list(dict.fromkeys(row["drafter"] for row in results))
    tasks = list(dict.fromkeys(row["task"] for row in results))
    figure = Figure(figsize=(11, 4), layout="constrained")
    by_position, by_task = figure.subplots(1, 2)
    for index, drafter in enumerate(drafters):
        rows = [row for row in results if row["drafter"] == drafter]
        rates = [_mean([row["accepted_per_position"][j] for row in rows]) for j in range(15)]
        by_position.plot(range(1, 16), rates, marker="o", label=drafter)
        places = [i + (index - (len(drafters) - 1) / 2) * 0.8 / len(drafters) for i in range(len(tasks))]
        by_task.bar(places, [row["acceptance_length"] for row in rows], 0.8 / len(drafters), label=drafter)
    by_position.set(xlabel="position in the block", ylabel="accepted / verified", ylim=(0, 1))
    by_task.set(ylabel="acceptance length")
    by_task.set_xticks(range(len(tasks)), tasks, rotation=20)
    by_position.legend()
    figure.savefig(path, dpi=150)


def _mean(rates: list[float | None]) -> float:
    known = [rate for rate in rates if rate is not None]
    return sum(known) / len(known) if known else float("nan")
