"""Train the miniature: `python -m dspine_cluster.miniature STAGE`. Every stage resumes where it was interrupted."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import torch
import typer

from dspine_cluster import miniature
from dspine_cluster.command import run_command
from dspine_cluster.errors import ConfigError
from dspine_cluster.miniature.pipeline import Recipe
from dspine_cluster.miniature.settings import Settings

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)

Folder = Annotated[Path, typer.Option(help="Where checkpoints, logs and the finished pair are kept.")]
Steps = Annotated[
    int | None, typer.Option(min=1, help="Length of the training; the learning rate follows it.")
]
DEFAULT_FOLDER = Path("runs/miniature")


class Kind(StrEnum):
    """The drafters of the pair."""

    DSPINE = "dspine"
    DFLASH = "dflash"


@app.callback()
def _one_thread() -> None:
    torch.set_num_threads(1)


@app.command()
def tokenizer(folder: Folder = DEFAULT_FOLDER) -> None:
    """Train the byte-level BPE."""
    Recipe(Settings(), folder).make_tokenizer()


@app.command()
def target(folder: Folder = DEFAULT_FOLDER, steps: Steps = None) -> None:
    """Train the target, in two processes, and export it in bf16."""
    settings = Settings()
    if steps is not None:
        settings = replace(settings, target=replace(settings.target, steps=steps))
    Recipe(settings, folder).make_target()


@app.command()
def continuations(
    folder: Folder = DEFAULT_FOLDER,
    first: Annotated[int, typer.Option(min=0, help="Which of the processes this is.")] = 0,
    stride: Annotated[int, typer.Option(min=1, help="How many processes share the work.")] = 1,
) -> None:
    """Let the exported target write the drafters' training text."""
    if first >= stride:
        raise ConfigError(f"--first counts from 0 and must be below --stride, {stride}")
    Recipe(Settings(), folder).make_continuations(first, stride)


@app.command()
def sweep(kind: Kind, folder: Folder = DEFAULT_FOLDER) -> None:
    """Try learning rates for a drafter in short trainings, and print what each gives."""
    for line in Recipe(Settings(), folder).sweep(kind.value):
        typer.echo(line)


@app.command()
def drafter(
    kind: Kind,
    folder: Folder = DEFAULT_FOLDER,
    steps: Steps = None,
    rate: Annotated[
        float, typer.Option(min=0.01, max=100.0, help="Factor of the learning rates; see sweep.")
    ] = 1.0,
    start: Annotated[
        Path | None, typer.Option(help="Folder of an earlier training of this kind, to start from its model.")
    ] = None,
) -> None:
    """Train one drafter on the continuations and export it in bf16."""
    settings = Settings()
    chosen = replace(settings.drafter, rate=rate, steps=settings.drafter.steps if steps is None else steps)
    Recipe(replace(settings, drafter=chosen), folder).make_drafter(kind.value, start)


@app.command()
def evaluate(
    folder: Folder = DEFAULT_FOLDER,
    count: Annotated[int, typer.Option(min=1, help="Prompts a task.")] = 32,
    seed: Annotated[int, typer.Option(help="Of the choice of prompts.")] = 1,
) -> None:
    """Print exact matches and greedy acceptance lengths on held-out prompts, as a Markdown table."""
    for line in Recipe(Settings(), folder).evaluate(count, seed):
        typer.echo(line)


@app.command()
def install(folder: Folder = DEFAULT_FOLDER) -> None:
    """Copy the finished pair into the package."""
    Recipe(Settings(), folder).install(miniature.PAIR_FOLDER)


def main() -> None:
    """Run the command."""
    run_command(app)


if __name__ == "__main__":
    main()
