"""The `dspine` command."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.progress import Progress

from dspine_cluster.bench.cli import app as bench_app
from dspine_cluster.bench.options import JsonFile, PictureFile, write_report
from dspine_cluster.command import run_command
from dspine_cluster.config import DraftingConfig, EngineConfig, ModelSource, VerifierConfig, limit_threads
from dspine_cluster.errors import ConfigError

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Serve large language models with speculative decoding."
)
app.add_typer(bench_app, name="bench")
console = Console(highlight=False, soft_wrap=True)

Target = Annotated[str, typer.Option(help="Target: a folder, a Hub id, or `miniature`.")]
Drafter = Annotated[
    str, typer.Option(help="Drafter: a folder, a Hub id, `miniature-dspine`, `miniature-dflash` or `none`.")
]
Revision = Annotated[str | None, typer.Option(help="Commit hash, required for a Hub id.")]


@app.callback()
def _root() -> None:
    limit_threads()


@app.command()
def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="What the user says; with --raw the text to continue.")
    ] = None,
    messages: Annotated[
        Path | None, typer.Option(help="JSON file of a chat request, whose messages stand in for PROMPT.")
    ] = None,
    target: Target = "miniature",
    target_revision: Revision = None,
    drafter: Drafter = "miniature-dspine",
    drafter_revision: Revision = None,
    max_tokens: Annotated[int, typer.Option(min=1)] = 200,
    temperature: Annotated[float, typer.Option(min=0.0, max=2.0)] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Makes sampled text repeatable.")] = None,
    verify: Annotated[str, typer.Option(help="`dynamic`, `fixed:K` or `off`.")] = "fixed:15",
    raw: Annotated[bool, typer.Option(help="Apply no chat template.")] = False,
    dtype: Annotated[str, typer.Option(help="`float32` or `bfloat16`.")] = "float32",
    device: str = "cpu",
) -> None:
    """Print the answer to PROMPT with each round's accepted tokens marked."""
    from dspine_cluster.api.chat_schema import ChatMessage
    from dspine_cluster.generate import print_generation, read_messages

    if (prompt is None) == (messages is None):
        raise ConfigError("give either PROMPT or --messages")
    if raw and prompt is None:
        raise ConfigError("--raw continues a PROMPT only")
    if dtype not in ("float32", "bfloat16"):
        raise typer.BadParameter("must be float32 or bfloat16", param_hint="--dtype")
    config = VerifierConfig(
        target=ModelSource(target, target_revision),
        drafter=ModelSource(drafter, drafter_revision),
        engine=EngineConfig(
            dtype="float32" if dtype == "float32" else "bfloat16",
            device=device,
            max_running_requests=1,
            pool_tokens=4096 + 16,
        ),
        drafting=DraftingConfig(verify=verify),
    )
    chat = read_messages(messages) if messages is not None else [ChatMessage(role="user", content=prompt)]
    text_or_chat = prompt if raw and prompt is not None else chat
    asyncio.run(
        print_generation(
            console, config, text_or_chat, max_tokens=max_tokens, temperature=temperature, seed=seed
        )
    )


@app.command()
def check(
    target: Annotated[str, typer.Argument(help="A folder, a Hub id, or `miniature`.")],
    drafter: Annotated[str, typer.Argument(help="A folder, a Hub id, a built-in name, or `none`.")],
    target_revision: Revision = None,
    drafter_revision: Revision = None,
    gpu_gb: Annotated[float, typer.Option(min=0.1, help="Memory of one GPU, decimal gigabytes.")] = 141.0,
    context_tokens: Annotated[int, typer.Option(min=16, help="Prompt and output of one request.")] = 32768,
    tensor_parallel: Annotated[int, typer.Option(min=1, help="Ranks that the target is split over.")] = 1,
) -> None:
    """Say whether TARGET and DRAFTER fit together, which tensors are missing, and what memory they need in bf16."""
    import torch

    from dspine_cluster.check import check_pair
    from dspine_cluster.check_report import print_report
    from dspine_cluster.sources import locate_model

    folder = locate_model(ModelSource(target, target_revision))
    drafter_folder: Path | None = None
    if drafter != "none":
        drafter_folder = locate_model(ModelSource(drafter, drafter_revision))
    report = check_pair(folder, drafter_folder, torch.bfloat16, tensor_parallel)
    fits = print_report(console, report, gpu_bytes=int(gpu_gb * 1e9), context_tokens=context_tokens)
    raise typer.Exit(0 if fits else 1)


@app.command()
def simulate(
    scenario: Annotated[Path, typer.Argument(help="A YAML file; see scenarios/.")],
    fidelity: Annotated[
        str, typer.Option(help="`fluid` takes rates, `round` every round of every replica.")
    ] = "fluid",
    json_file: JsonFile = None,
    picture: PictureFile = None,
    check_fidelity: Annotated[
        bool, typer.Option("--check-fidelity", help="Only say how far `fluid` is from `round`.")
    ] = False,
    alone: Annotated[bool, typer.Option("--alone", help="No rivals, and the settings as they are.")] = False,
    bound: Annotated[
        bool, typer.Option("--bound", help="Also what is needed by who knows beforehand what comes.")
    ] = False,
) -> None:
    """Serve SCENARIO with a simulated fleet: autoscaling against Serve's default policy and fixed numbers."""
    from dspine_cluster.sim.comparison import MAX_DIFFERENCE, as_json, compare, differences
    from dspine_cluster.sim.fleet_runs import JUDGED
    from dspine_cluster.sim.report import plot_comparison, print_comparison
    from dspine_cluster.sim.scenario import read_scenario

    if fidelity not in ("round", "fluid"):
        raise typer.BadParameter("must be round or fluid", param_hint="--fidelity")
    kind: Literal["round", "fluid"] = "round" if fidelity == "round" else "fluid"
    parsed = read_scenario(scenario)
    if check_fidelity:
        worst = differences(parsed)
        for name, value in worst.items():
            note = "" if name in JUDGED else " (not judged: one request in a hundred decides it)"
            console.print(f"{name}: fluid differs by {100 * value:+.2f} %{note}")
        raise typer.Exit(0 if max(abs(worst[name]) for name in JUDGED) <= MAX_DIFFERENCE else 1)
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        judged = compare(
            parsed,
            kind,
            lambda text: bar.update(task, description=text),
            is_alone=alone,
            has_bound=bound,
        )
    print_comparison(console, parsed, judged)
    write_report(as_json(parsed, kind, judged), json_file)
    if picture is not None:
        plot_comparison(parsed, judged, picture)


def main() -> None:
    """Run `dspine`."""
    run_command(app)
