"""Where benchmarks print, and how they show how far they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import Progress

console = Console(highlight=False, soft_wrap=True)


class Step(Protocol):
    """One more is done; `text` says what."""

    def __call__(self, text: str = "") -> None: ...


@contextmanager
def progress(total: int | None, text: str = "") -> Iterator[Step]:
    """Show how many of `total` are done, None where nobody knows, until the context is left."""
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(text, total=total)

        def step(text: str = "") -> None:
            bar.update(task, advance=1, description=text)

        yield step
