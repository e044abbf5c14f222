"""`dspine bench`: measurements whose figures the README, its docs and the model card quote."""

from __future__ import annotations

import typer

from dspine_cluster.bench.decoding_commands import acceptance, engine, schemas, speedup
from dspine_cluster.bench.round_commands import drafter_loss, overhead, turns
from dspine_cluster.bench.serving_commands import connections, http, routing

app = typer.Typer(no_args_is_help=True, help="Measure the miniature on this machine.")
for command in (
    acceptance,
    speedup,
    engine,
    turns,
    drafter_loss,
    routing,
    http,
    connections,
    overhead,
    schemas,
):
    app.command()(command)
