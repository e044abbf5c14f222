"""Benchmarks of the served application, and of what it is simulated to do."""

from __future__ import annotations

from typing import Annotated

import typer

from dspine_cluster.bench.options import JsonFile, numbers, write_report
from dspine_cluster.bench.terminal import console, progress


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
    with progress(len(settings.loads) * len(settings.caches) * len(POLICIES)) as step:
        report = run_routing(settings, processes, step)
    if live and can_run_live():
        with progress(None, "live"):
            report["live"] = run_live("dspine_serve.live_routing")
    print_routing(console, report)
    write_report(report, json_file)


def http(
    streams: Annotated[int, typer.Option(min=1, max=256, help="Read at the same time.")] = 64,
    events: Annotated[int, typer.Option(min=2, max=100_000, help="Of each stream.")] = 900,
    json_file: JsonFile = None,
) -> None:
    """Events a second through ingress and placement, of verifiers that cost nothing, beside a bare application."""
    from dspine_cluster.bench.live import run_live
    from dspine_cluster.bench.report import print_http

    report = run_live("dspine_serve.live_http", streams=streams, events=events)
    print_http(console, report)
    write_report(report, json_file)


def connections(
    count: Annotated[int, typer.Option(min=2, max=2000, help="Streams at the same time.")] = 500,
    tokens: Annotated[int, typer.Option(min=1, max=256, help="Of each answer.")] = 16,
    rounds: Annotated[int, typer.Option(min=1, help="Of the load without and with clients that leave.")] = 2,
    seed: Annotated[int, typer.Option(help="Of prompts and moments.")] = 1,
    json_file: JsonFile = None,
) -> None:
    """Streams of the served miniature, half of whose clients leave at random moments: what the others notice of it, and
    what is held afterwards."""
    from dspine_cluster.bench.live import run_live
    from dspine_cluster.bench.report import print_connections

    report = run_live(
        "dspine_serve.live_connections", connections=count, tokens=tokens, rounds=rounds, seed=seed
    )
    print_connections(console, report)
    write_report(report, json_file)
