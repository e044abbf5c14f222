"""Benchmarks of what decoding gives: tokens a second, acceptance lengths and texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from dspine_cluster.bench.options import JsonFile, PictureFile, choices, numbers, write_report
from dspine_cluster.bench.terminal import console, progress
from dspine_cluster.config import DraftingConfig, EngineConfig, VerifierConfig


def acceptance(
    drafter: Annotated[str, typer.Option(help="Comma-separated: dspine, dflash, none.")] = "dspine,dflash",
    task: Annotated[str | None, typer.Option(help="Comma-separated; all tasks by default.")] = None,
    prompts: Annotated[int, typer.Option(min=1, help="Held-out prompts a task.")] = 32,
    temperature: Annotated[float, typer.Option(min=0.0, max=2.0)] = 0.0,
    verify: Annotated[str, typer.Option(help="`dynamic`, `fixed:K` or `off`.")] = "fixed:15",
    concurrency: Annotated[int, typer.Option(min=1, max=256, help="Requests at the same time.")] = 1,
    max_tokens: Annotated[int, typer.Option(min=2, help="Generated a request.")] = 160,
    seed: Annotated[int, typer.Option(help="Of the choice of prompts.")] = 1,
    json_file: JsonFile = None,
    picture: PictureFile = None,
) -> None:
    """Acceptance length by task and drafter, and whether greedy text stays plain decoding's."""
    from dspine_cluster.bench.acceptance import AcceptanceSettings, run_acceptance
    from dspine_cluster.bench.picture import plot_acceptance
    from dspine_cluster.bench.report import print_acceptance
    from dspine_cluster.bench.workload import TASK_NAMES

    drafters = tuple(choices(drafter, ("dspine", "dflash", "none"), "--drafter"))
    if picture is not None and drafters == ("none",):
        raise typer.BadParameter("a picture shows drafters; add one with --drafter", param_hint="--plot")
    tasks = list(TASK_NAMES) if task is None else choices(task, TASK_NAMES, "--task")
    config = VerifierConfig(
        engine=EngineConfig(
            max_model_len_tokens=6144,
            pool_tokens=6144 * min(concurrency, 8) + 16,
            max_running_requests=concurrency,
        ),
        drafting=DraftingConfig(verify=verify, first_deadline_s=10.0),
    )
    workload = _workload(tasks, prompts, seed)
    settings = AcceptanceSettings(drafters, temperature, concurrency, max_tokens)
    with progress(len({"none", *drafters}) * len(tasks) * prompts) as step:
        report = run_acceptance(config, settings, workload, lambda name, at: step(f"{name} {at}"))
    print_acceptance(console, report)
    write_report(report, json_file)
    if picture is not None:
        plot_acceptance(report, picture)


def speedup(
    concurrency: Annotated[
        str, typer.Option(help="Comma-separated: requests at the same time.")
    ] = "1,2,4,8,16,32",
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            "--tasks",
            help="Comma-separated: arithmetic, code, tools, prose, chat, multi-turn, long. By default all without "
            "the long prompts, whose reading takes the same time on both sides.",
        ),
    ] = None,
    turns: Annotated[
        int,
        typer.Option(
            min=1, help="Of each concurrency, twice as many from 4 on; both decode the same prompts."
        ),
    ] = 4,
    verify: Annotated[str, typer.Option(help="`dynamic` or `fixed:K`.")] = "dynamic",
    max_tokens: Annotated[int, typer.Option(min=2, help="Generated a request.")] = 160,
    seed: Annotated[int, typer.Option(help="Of the choice of prompts.")] = 1,
    json_file: JsonFile = None,
) -> None:
    """Tokens a second of a served pair over plain decoding, prefill included, both in turn."""
    from dspine_cluster.bench.report import print_speedup
    from dspine_cluster.bench.speedup import DEFAULT_TASKS, SpeedupSettings, run_speedup
    from dspine_cluster.bench.workload import TASK_NAMES

    tasks = list(DEFAULT_TASKS) if task is None else choices(task, TASK_NAMES, "--task")
    settings = SpeedupSettings(numbers(concurrency, int, "--concurrency", most=64), turns, max_tokens)
    most = max(settings.concurrencies)
    config = VerifierConfig(
        engine=EngineConfig(
            max_model_len_tokens=6144,
            pool_tokens=6144 * min(most, 8) + 16,
            max_running_requests=most,
            max_batch_tokens=max(1024, 17 * most + 64),
        ),
        drafting=DraftingConfig(verify=verify, first_deadline_s=10.0),
    )
    count = settings.num_prompts(len(tasks))
    workload = _workload(tasks, count, seed)
    with progress(2 * count * len(tasks)) as step:
        report = run_speedup(config, settings, workload, step)
    print_speedup(console, report)
    write_report(report, json_file)


def engine(
    batch: Annotated[str, typer.Option(help="Comma-separated batch sizes.")] = "1,8",
    tokens: Annotated[int, typer.Option(min=2, max=1024, help="Generated a request.")] = 96,
    json_file: JsonFile = None,
) -> None:
    """Plain decoding beside transformers' `generate`."""
    from dspine_cluster.bench.engine import run_engine

    report = run_engine(numbers(batch, int, "--batch", most=256), tokens)
    for row in report["results"]:
        console.print(
            f"batch {row['batch']}: {row['tokens_per_s']:.0f} tokens/s, transformers "
            f"{row['tokens_per_s_transformers']:.0f}, ratio {row['ratio']:.2f}"
        )
    write_report(report, json_file)


def schemas(
    count: Annotated[int, typer.Option(min=1, help="Random JSON schemas.")] = 200,
    temperature: Annotated[float, typer.Option(min=0.0, max=2.0)] = 1.0,
    verify: Annotated[str, typer.Option(help="`dynamic`, `fixed:K` or `off`.")] = "fixed:15",
    max_tokens: Annotated[int, typer.Option(min=2, help="Generated a request.")] = 600,
    concurrency: Annotated[int, typer.Option(min=1, max=256, help="Requests at the same time.")] = 8,
    seed: Annotated[int, typer.Option(help="Of the schemas.")] = 1,
    json_file: JsonFile = None,
) -> None:
    """Whether sampled answers fit the JSON schemas they were asked for, and the acceptance length."""
    from dspine_cluster.bench.schemas import run_schemas

    config = VerifierConfig(
        engine=EngineConfig(pool_tokens=4096 * 4, max_running_requests=concurrency),
        drafting=DraftingConfig(verify=verify, first_deadline_s=10.0),
    )
    with progress(count) as step:
        report = run_schemas(
            config,
            count=count,
            temperature=temperature,
            max_tokens=max_tokens,
            seed=seed,
            concurrency=concurrency,
            done=step,
        )
    console.print(
        f"{report['num_valid']} of {count} answers fit their schema, {report['num_cut']} were cut by max_tokens; "
        f"acceptance length {report['acceptance_length'] or 1.0:.2f}"
    )
    write_report(report, json_file)


def _workload(tasks: Sequence[str], num_prompts: int, seed: int) -> dict[str, list[list[int]]]:
    """So many held-out prompts of each task, as the miniature's tokens."""
    from dspine_cluster.bench.workload import held_out_workload
    from dspine_cluster.models.folder import load_tokenizer
    from dspine_cluster.sources import locate_model

    tokenizer = load_tokenizer(locate_model(VerifierConfig().target))
    return {name: held_out_workload(tokenizer, name, num_prompts, seed) for name in tasks}
