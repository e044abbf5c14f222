"""A comparison on the terminal and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dspine_cluster.sim.comparison import Judged, verdict
from dspine_cluster.sim.scenario import Scenario


def print_comparison(console: Console, scenario: Scenario, judged: Sequence[Judged]) -> None:
    """A row a policy, the decisions of the real one, and the verdict."""
    first = judged[0]
    console.print(f"decisions of {first.name}, seed {scenario.held_out_seeds[0]}:")
    for event in first.report.scale_events:
        console.print(f"{event.at_s:7.0f} s  {event.reason}")
    table = Table("policy", box=None)
    for name in (
        "requests",
        "met %",
        "GPU hours",
        "goodput/s",
        "cached",
        "TTFT p50 ms",
        "p99",
        "token p50 ms",
        "p99",
    ):
        table.add_column(name, justify="right")
    table.add_column("changes", justify="right")
    for item in judged:
        score = item.score
        times = (score.ttft_p50_s, score.ttft_p99_s, score.inter_token_p50_s, score.inter_token_p99_s)
        table.add_row(
            item.name,
            f"{score.num_requests:.0f}",
            f"{100 * score.objective_met_ratio:.2f}",
            f"{score.gpu_hours:.2f}",
            f"{score.goodput_tokens_per_s:.0f}",
            f"{score.cached_token_ratio:.3f}",
            *(f"{1000 * time:.0f}" for time in times[:2]),
            *(f"{1000 * time:.1f}" for time in times[2:]),
            f"{score.scale_events:g}",
        )
    console.print(table)
    for item in judged:
        parameters = ", ".join(f"{name} {value:g}" for name, value in item.parameters.items())
        console.print(f"{item.name} at its best: {parameters}")
    console.print(f"{scenario.name}: {verdict(scenario, judged)}")


def plot_comparison(scenario: Scenario, judged: Sequence[Judged], path: Path) -> None:
    """Replicas and requests over time, a row a policy."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3 * len(judged)), layout="constrained")
    rows = figure.subplots(len(judged), 1, sharex=True, squeeze=False)
    for axes, item in zip(rows[:, 0], judged, strict=True):
        times, verifiers, drafters, requests = zip(*item.report.counts, strict=True)
        axes.step(times, verifiers, where="post", label="verifiers")
        axes.step(times, drafters, where="post", label="drafters")
        axes.set(ylabel="replicas", title=item.name, ylim=(0, None))
        other = axes.twinx()
        other.plot(times, requests, color="grey", alpha=0.6, label="requests")
        other.set(ylabel="requests", ylim=(0, None))
        axes.legend(loc="upper left")
    rows[-1, 0].set(xlabel=f"seconds of {scenario.name}")
    figure.savefig(path, dpi=120)
