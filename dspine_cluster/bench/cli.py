"""`dspine bench`: measurements whose figures the README and the model card quote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from dspine_cluster.config import DraftingConfig, EngineConfig, VerifierConfig

app = typer.Typer(no_args_is_help=True, help="Measure the miniature on this machine.")
console = Console(highlight=False, soft_wrap=True)

JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the report here.")]


@app.command()
def acceptance(
    drafter: Annotated[str, typer.Option(help="Comma-separated: dspine, dflash, none.")] = "dspine,dflash",
    task: Annotated[str | None, typer.Option(help="Comma-separated; all tasks by default.")] = None,
    prompts: Annotated[int, typer.Option(min=1, help="Held-out prompts a task.")] = 32,
    temperature: Annotated[float, typer.Option(min=0.0, max=2.0)] = 0.0,
    verify: Annotated[str, typer.Option(help="`fixed:K` or `off`.")] = "fixed:15",
    concurrency: Annotated[int, typer.Option(min=1)] = 1,
    max_tokens: Annotated[int, typer.Option(min=2)] = 160,
    seed: Annotated[int, typer.Option(help="Of the choice of prompts.")] = 1,
    json_file: JsonFile = None,
    plot: Annotated[Path | None, typer.Option(help="Write a picture here.")] = None,
) -> None:
    """Acceptance length by task and drafter, and whether greedy text stays plain decoding's."""
    from dspine_cluster.bench.acceptance import AcceptanceSettings, run_acceptance
    from dspine_cluster.bench.report import plot_acceptance, print_acceptance
    from dspine_cluster.bench.workload import TASK_NAMES, held_out_workload
    from dspine_cluster.sources import locate_model
    from dspine_cluster.verifier.load import load_tokenizer

    drafters = tuple(_choices(drafter, ("dspine", "dflash", "none"), "--drafter"))
    tasks = _choices(task, TASK_NAMES, "--task") if task else list(TASK_NAMES)
    config = VerifierConfig(
        engine=EngineConfig(
            max_model_len_tokens=6144,
            pool_tokens=6144 * min(concurrency, 8) + 16,
            max_running_requests=concurrency,
        ),
        drafting=DraftingConfig(verify=verify, first_deadline_s=10.0),
    )
    tokenizer = load_tokenizer(locate_model(config.target))
    workload = {name: held_out_workload(tokenizer, name, prompts, seed) for name in tasks}
    settings = AcceptanceSettings(drafters, temperature, concurrency, max_tokens)
    with Progress(console=console, transient=True) as bar:
        num_runs = len({"none", *drafters}) * len(tasks) * prompts
        total = bar.add_task("", total=num_runs)
        report = run_acceptance(
            config,
            settings,
            workload,
            lambda name, at: bar.update(total, advance=1, description=f"{name} {at}"),
        )
    print_acceptance(console, report)
    _write(report, json_file)
    if plot is not None:
        plot_acceptance(report, plot)


@app.command()
def engine(
    batch: Annotated[str, typer.Option(help="Comma-separated batch sizes.")] = "1,8",
    tokens: Annotated[int, typer.Option(min=2, help="Generated a request.")] = 96,
    json_file: JsonFile = None,
) -> None:
    """Plain decoding beside transformers' `generate`."""
    from dspine_cluster.bench.engine import run_engine
    from dspine_cluster.sources import locate_model
    from dspine_cluster.verifier.load import load_tokenizer

    folder = locate_model(VerifierConfig().target)
    prompt = (
        load_tokenizer(folder)
        .encode("<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n")
        .ids
    )
    report = run_engine(folder, prompt, [int(size) for size in batch.split(",")], tokens)
    for row in report["results"]:
        console.print(
            f"batch {row['batch']}: {row['tokens_per_s']:.0f} tokens/s, transformers "
            f"{row['tokens_per_s_transformers']:.0f}, ratio {row['ratio']:.2f}"
        )
    _write(report, json_file)


@app.command()
def routing(
    loads: Annotated[str, typer.Option(help="Comma-separated: conversations that start a second.")] = "3,6,9",
    caches: Annotated[
        str, typer.Option(help="Comma-separated: tokens in each verifier's page pool.")
    ] = "100000,200000,400000",
    duration_s: Annotated[float, typer.Option("--duration", min=1.0, help="Virtual seconds a cell.")] = 120.0,
    seed: Annotated[int, typer.Option(help="Of conversations and policies.")] = 1,
    processes: Annotated[int, typer.Option(min=1, help="Cells simulated at the same time.")] = 2,
    live: Annotated[
        bool, typer.Option(help="Also run conversations on two Ray nodes of this machine.")
    ] = True,
    json_file: JsonFile = None,
) -> None:
    """Placement against other ways to route conversations, on simulated replicas, and live."""
    from dspine_cluster.bench.live import can_run_live, run_live
    from dspine_cluster.bench.report import print_routing
    from dspine_cluster.bench.routing import RoutingSettings, run_routing
    from dspine_cluster.sim.cluster import POLICIES

    settings = RoutingSettings(
        loads=tuple(float(load) for load in loads.split(",")),
        caches=tuple(int(cache) for cache in caches.split(",")),
        duration_s=duration_s,
        seed=seed,
    )
    with Progress(console=console, transient=True) as bar:
        total = bar.add_task("", total=len(settings.loads) * len(settings.caches) * len(POLICIES))
        report = run_routing(settings, processes, lambda: bar.update(total, advance=1))
        if live and can_run_live():
            bar.add_task("live", total=None)
            report["live"] = run_live()
    print_routing(console, report)
    _write(report, json_file)


def _choices(value: str, known: tuple[str, ...], option: str) -> list[str]:
    names = [name.strip() for name in value.split(",")]
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"{name!r} is not one of {', '.join(known)}", param_hint=option)
    return list(dict.fromkeys(names))


def _write(report: dict[str, Any], path: Path | None) -> None:
    if path is not None:
        path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
