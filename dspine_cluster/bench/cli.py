"""`dspine bench`: measurements whose figures the README and the model card quote."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from dspine_cluster.bench.options import JsonFile, PictureFile, choices, numbers, write_report
from dspine_cluster.config import DraftingConfig, EngineConfig, VerifierConfig
from dspine_cluster.errors import ConfigError

app = typer.Typer(no_args_is_help=True, help="Measure the miniature on this machine.")
console = Console(highlight=False, soft_wrap=True)


@app.command()
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
    from dspine_cluster.bench.workload import TASK_NAMES, held_out_workload
    from dspine_cluster.models.folder import load_tokenizer
    from dspine_cluster.sources import locate_model

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
    write_report(report, json_file)
    if picture is not None:
        plot_acceptance(report, picture)


@app.command()
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
            min=1, help="Of each concurrency, twice as many from 8 on; both decode the same prompts."
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
    from dspine_cluster.bench.workload import TASK_NAMES, held_out_workload
    from dspine_cluster.models.folder import load_tokenizer
    from dspine_cluster.sources import locate_model

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
    tokenizer = load_tokenizer(locate_model(config.target))
    count = settings.num_prompts(len(tasks))
    workload = {name: held_out_workload(tokenizer, name, count, seed) for name in tasks}
    with Progress(console=console, transient=True) as bar:
        total = bar.add_task("", total=2 * count * len(tasks))
        report = run_speedup(
            config, settings, workload, lambda at: bar.update(total, advance=1, description=at)
        )
    print_speedup(console, report)
    write_report(report, json_file)


@app.command()
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


@app.command()
def turns(
    conversations: Annotated[int, typer.Option(min=1)] = 12,
    turns: Annotated[
        int, typer.Option(min=2, help="Of each conversation; the first finds nothing cached.")
    ] = 4,
    max_tokens: Annotated[int, typer.Option(min=2)] = 96,
    seed: Annotated[int, typer.Option(help="Of the conversations.")] = 1,
    json_file: JsonFile = None,
) -> None:
    """What caches give to later turns: cached tokens, and text and acceptance length beside cold runs."""
    from dspine_cluster.bench.report import print_turns
    from dspine_cluster.bench.turns import held_out_conversations, run_turns

    config = VerifierConfig(
        engine=EngineConfig(pool_tokens=1024 * (conversations * turns + 5), max_running_requests=1),
        # However slow the machine, the same blocks are verified.
        drafting=DraftingConfig(verify="fixed:15", late_factor=1e6, first_deadline_s=60.0),
    )
    scripts = held_out_conversations(conversations, turns, seed)
    with Progress(console=console, transient=True) as bar:
        total = bar.add_task("", total=2 * conversations * (2 * turns - 1))
        report = run_turns(config, scripts, max_tokens, lambda: bar.update(total, advance=1))
    print_turns(console, report)
    write_report(report, json_file)


@app.command()
def drafter_loss(
    requests: Annotated[int, typer.Option(min=1, help="Decoded at the same time.")] = 64,
    prompt_tokens: Annotated[int, typer.Option(min=16, help="Of each request.")] = 640,
    steps: Annotated[int, typer.Option(min=1, help="Of each phase.")] = 12,
    seed: Annotated[int, typer.Option(help="Of the prompts.")] = 1,
    json_file: JsonFile = None,
) -> None:
    """How long steps take when many requests lose their drafter at once and move to another."""
    from dspine_cluster.bench.drafter_loss import run_drafter_loss
    from dspine_cluster.bench.report import print_drafter_loss
    from dspine_cluster.bench.workload import MULTI_TURN, held_out_workload
    from dspine_cluster.models.folder import load_tokenizer
    from dspine_cluster.sources import locate_model

    length = prompt_tokens + 128 * steps
    config = VerifierConfig(
        engine=EngineConfig(
            max_model_len_tokens=length,
            pool_tokens=length * requests + 16,
            max_running_requests=requests,
            max_batch_tokens=17 * requests + 64,
        ),
        drafting=DraftingConfig(verify="fixed:15"),
    )
    tokenizer = load_tokenizer(locate_model(config.target))
    whole = held_out_workload(tokenizer, MULTI_TURN, requests, seed)
    prompts = [(prompt * (prompt_tokens // len(prompt) + 1))[:prompt_tokens] for prompt in whole]
    report = run_drafter_loss(config, prompts, steps)
    print_drafter_loss(console, report)
    write_report(report, json_file)


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
        loads=numbers(loads, float, "--loads"),
        caches=numbers(caches, int, "--caches"),
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
    write_report(report, json_file)


@app.command()
def http(
    streams: Annotated[int, typer.Option(min=1, max=256, help="Read at the same time.")] = 64,
    events: Annotated[int, typer.Option(min=2, max=100_000, help="Of each stream.")] = 900,
    json_file: JsonFile = None,
) -> None:
    """Events a second through ingress and placement, of verifiers that cost nothing, beside a bare application."""
    from dspine_cluster.bench.live import can_run_live, run_live
    from dspine_cluster.bench.report import print_http

    if not can_run_live():
        raise ConfigError("install Ray and the deployment to measure them")
    report = run_live("dspine_serve.live_http", ["--streams", str(streams), "--events", str(events)])
    print_http(console, report)
    write_report(report, json_file)


@app.command()
def connections(
    count: Annotated[int, typer.Option(min=2, max=2000, help="Streams at the same time.")] = 500,
    tokens: Annotated[int, typer.Option(min=1, max=256, help="Of each answer.")] = 16,
    rounds: Annotated[int, typer.Option(min=1, help="Of the load without and with clients that leave.")] = 2,
    seed: Annotated[int, typer.Option(help="Of prompts and moments.")] = 1,
    json_file: JsonFile = None,
) -> None:
    """Streams of the served miniature, half of whose clients leave at random moments: what the others notice of it, and
    what is held afterwards."""
    from dspine_cluster.bench.live import can_run_live, run_live
    from dspine_cluster.bench.report import print_connections

    if not can_run_live():
        raise ConfigError("install Ray and the deployment to measure them")
    options = {"connections": count, "tokens": tokens, "rounds": rounds, "seed": seed}
    report = run_live(
        "dspine_serve.live_connections",
        [text for name, value in options.items() for text in (f"--{name}", str(value))],
    )
    print_connections(console, report)
    write_report(report, json_file)


@app.command()
def overhead(
    requests: Annotated[str, typer.Option(help="Comma-separated: decoded at the same time.")] = "1,8,64,256",
    rounds: Annotated[int, typer.Option(min=1, max=200, help="Measured of each.")] = 100,
    profile: Annotated[bool, typer.Option("--profile", help="Print the functions that take most.")] = False,
    json_file: JsonFile = None,
) -> None:
    """What a round costs outside the models, on both sides, and what a socket adds."""
    from dspine_cluster.bench.overhead import run_overhead
    from dspine_cluster.bench.report import print_overhead

    report = run_overhead(numbers(requests, int, "--requests", most=512), rounds, profile=profile)
    print_overhead(console, report)
    write_report(report, json_file)


@app.command()
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
    with Progress(console=console, transient=True) as bar:
        total = bar.add_task("", total=count)
        report = run_schemas(
            config,
            count=count,
            temperature=temperature,
            max_tokens=max_tokens,
            seed=seed,
            concurrency=concurrency,
            done=lambda: bar.update(total, advance=1),
        )
    console.print(
        f"{report['num_valid']} of {count} answers fit their schema, {report['num_cut']} were cut by max_tokens; "
        f"acceptance length {report['acceptance_length'] or 1.0:.2f}"
    )
    write_report(report, json_file)
