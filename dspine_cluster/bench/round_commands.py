"""Benchmarks of what surrounds rounds: caches, drafters that are lost, the host."""

from __future__ import annotations

from typing import Annotated

import typer

from dspine_cluster.bench.options import JsonFile, numbers, write_report
from dspine_cluster.bench.terminal import console, progress
from dspine_cluster.config import DraftingConfig, EngineConfig, VerifierConfig


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
    with progress(2 * conversations * (2 * turns - 1)) as step:
        report = run_turns(config, scripts, max_tokens, step)
    print_turns(console, report)
    write_report(report, json_file)


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
