"""The acceptance report as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dspine_cluster.errors import ConfigError


def check_picture(path: Path) -> None:
    """Make sure that a picture can be drawn in the format that the path's ending names.

    Raises:
        ConfigError: matplotlib is not installed, or does not know the ending.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("--plot needs matplotlib: pip install 'dspine-cluster[plot]'") from error
    endings = Figure().canvas.get_supported_filetypes()
    if path.suffix.lower().removeprefix(".") not in endings:
        raise ConfigError(f"--plot {path} must end in one of {', '.join(f'.{e}' for e in sorted(endings))}")


def plot_acceptance(report: dict[str, Any], path: Path) -> None:
    """Acceptance rate by position and acceptance length by task, for every drafter of the report."""
    from matplotlib.figure import Figure

    results = [row for row in report["results"] if row["drafter"] != "none"]
    drafters = list(dict.fromkeys(row["drafter"] for row in results))
    tasks = list(dict.fromkeys(row["task"] for row in results))
    figure = Figure(figsize=(11, 4), layout="constrained")
    by_position, by_task = figure.subplots(1, 2)
    for index, drafter in enumerate(drafters):
        rows = [row for row in results if row["drafter"] == drafter]
        rates = [
            _mean(of_tasks) for of_tasks in zip(*(row["accepted_per_position"] for row in rows), strict=True)
        ]
        by_position.plot(range(1, len(rates) + 1), rates, marker="o", label=drafter)
        places = [i + (index - (len(drafters) - 1) / 2) * 0.8 / len(drafters) for i in range(len(tasks))]
        by_task.bar(places, [row["acceptance_length"] for row in rows], 0.8 / len(drafters), label=drafter)
    by_position.set(xlabel="position in the block", ylabel="accepted / verified", ylim=(0, 1))
    by_task.set(ylabel="acceptance length")
    by_task.set_xticks(range(len(tasks)), tasks, rotation=20)
    by_position.legend()
    figure.savefig(path, dpi=150)


def _mean(rates: tuple[float | None, ...]) -> float:
    known = [rate for rate in rates if rate is not None]
    return sum(known) / len(known) if known else float("nan")
