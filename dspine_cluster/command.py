"""How a command line of this package ends when something goes wrong."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console

from dspine_cluster.errors import DspineError


def run_command(app: Callable[[], object]) -> None:
    """Run a command; what the caller can mend is one line on standard error and exit status 2."""
    try:
        app()
    except (DspineError, OSError) as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(
            f"error: {error}", style="red", markup=False
        )
        raise SystemExit(2) from error
