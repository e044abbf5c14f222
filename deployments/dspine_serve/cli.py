"""The `dspine` command: what the library has, and what needs the deployment."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from dspine_cluster.cli import app
from dspine_cluster.command import run_command

__all__ = ["app", "main"]

Revision = Annotated[str | None, typer.Option(help="Commit hash, required for a Hub id.")]


@app.command()
def serve(
    target: Annotated[str, typer.Argument(help="A folder, a Hub id, or `miniature`.")],
    target_revision: Revision = None,
    drafter: Annotated[
        str | None,
        typer.Option(
            help="A folder, a Hub id, a built-in name, or `none`. The miniature's, or none, by default."
        ),
    ] = None,
    drafter_revision: Revision = None,
    verifiers: Annotated[int, typer.Option(min=1, help="Replicas of the target.")] = 1,
    drafters: Annotated[int, typer.Option(min=1, help="Replicas of the drafter.")] = 1,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 chooses a free one.")] = 8000,
    model_name: Annotated[str | None, typer.Option(help="The name that clients use.")] = None,
    max_model_len: Annotated[
        int | None, typer.Option(help="Tokens of prompt and output of a request.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="`float32` or `bfloat16`.")] = None,
    device: Annotated[str | None, typer.Option(help="`cpu` or `cuda`.")] = None,
    verify: Annotated[str | None, typer.Option(help="`dynamic`, `fixed:K` or `off`.")] = None,
    otlp_endpoint: Annotated[
        str | None, typer.Option(help="Send a trace of each request to this OTLP receiver.")
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any other setting, as `dspine config` lists them."),
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(envvar="RAY_ADDRESS", help="A running Ray cluster to use; else one is started."),
    ] = None,
    log_level: Annotated[
        str, typer.Option(help="Of what replicas log: `INFO` shows each request.")
    ] = "WARNING",
) -> None:
    """Serve TARGET, until Ctrl-C. The same application as `serve run deployments.yaml` runs, without a file."""
    import torch

    from dspine_serve.serve_options import ServeOptions, app_args
    from dspine_serve.serving import Place, serve_until_stopped

    options = ServeOptions(
        target=target,
        target_revision=target_revision,
        drafter=drafter,
        drafter_revision=drafter_revision,
        num_verifiers=verifiers,
        num_drafters=drafters,
        model_name=model_name,
        max_model_len_tokens=max_model_len,
        dtype=dtype,
        device=device,
        verify=verify,
        otlp_endpoint=otlp_endpoint,
        assignments=assignments or [],
    )
    args = app_args(options, torch.cuda.device_count())
    try:
        serve_until_stopped(args, Place(host, port, ray_address, log_level.upper()), _console().print)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


@app.command()
def status(
    url: Annotated[str, typer.Option(help="Of the server.")] = "http://127.0.0.1:8000",
    api_key: Annotated[
        str | None, typer.Option(envvar="DSPINE_API_KEY", help="Where the server asks for one.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it anew each second, until Ctrl-C.")] = False,
) -> None:
    """Show replicas, pairs, requests, throughput and acceptance of a server."""
    from dspine_serve.status import show_status, watch_status

    (watch_status if watch else show_status)(_console(), url, api_key)


@app.command()
def config(
    markdown: Annotated[bool, typer.Option("--markdown", help="Write the page docs/settings.md.")] = False,
) -> None:
    """Print every setting with its default, unit and meaning."""
    from dspine_serve.settings import all_settings, as_markdown

    settings = all_settings()
    if markdown:
        typer.echo(as_markdown(settings), nl=False)
        return
    console = Console(highlight=False)
    for setting in settings:
        value = f"{setting.default} {setting.unit}".rstrip()
        console.print(Text(setting.key, style="bold") + f" = {value}", soft_wrap=True)
        console.print(Padding(Text(setting.meaning), (0, 0, 0, 4)))


def _console() -> Console:
    """As wide as the terminal is now."""
    return Console(highlight=False, soft_wrap=True)


def main() -> None:
    """Run `dspine`."""
    run_command(app)
