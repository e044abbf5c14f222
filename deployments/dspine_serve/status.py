"""`dspine status`: what the cluster does, on the terminal."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from http import HTTPStatus
from urllib.error import HTTPError, URLError

from pydantic import ValidationError
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dspine_cluster.api.status_routes import STATUS_PATH, FiguresBody, StatusBody
from dspine_cluster.errors import ConfigError

_TIMEOUT_S = 10.0
_PERIOD_S = 1.0
_BARS = " ▁▂▃▄▅▆▇█"


def read_status(url: str, api_key: str | None = None) -> StatusBody:
    """What the server at `url` says.

    Raises:
        ConfigError: nobody answers there, or no server of this kind.
    """
    base = url.rstrip("/").removesuffix("/v1")
    try:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        request = urllib.request.Request(base + STATUS_PATH, headers=headers)
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            return StatusBody.model_validate(json.load(answer))
    except HTTPError as error:
        if error.code == HTTPStatus.UNAUTHORIZED:
            raise ConfigError(f"{base} asks for an API key; give it with --api-key") from error
        raise ConfigError(f"{base} answers {error.code}: is it a dspine server?") from error
    except (OSError, ValueError, ValidationError) as error:
        cause = error.reason if isinstance(error, URLError) else error
        raise ConfigError(
            f"no status from {base}: {cause}; is it running? Name another server with --url"
        ) from error


def show_status(console: Console, url: str, api_key: str | None = None) -> None:
    """Print it once."""
    console.print(render(read_status(url, api_key)))


def watch_status(
    console: Console, url: str, api_key: str | None = None, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Show it anew each second until interrupted. A server that does not answer for a while is shown as that."""
    status = render(read_status(url, api_key))
    with Live(status, console=console, auto_refresh=False) as live:
        try:
            while True:
                sleep(_PERIOD_S)
                try:
                    status = render(read_status(url, api_key))
                    live.update(status, refresh=True)
                except ConfigError as error:
                    live.update(Group(status, Text(str(error), style="red")), refresh=True)
        except KeyboardInterrupt:
            return


def render(status: StatusBody) -> RenderableType:
    """Tables of everything; `-` where there is nothing to tell."""
    recent, total = status.recent, status.total
    summary = Table.grid(padding=(0, 2))
    summary.add_row(Text(status.model, style="bold"), f"last {status.window_s:.0f} s", "since the start")
    summary.add_row("tokens/s", f"{status.tokens_per_s:.0f}", "")
    summary.add_row("acceptance length", _number(recent.acceptance_length), _number(total.acceptance_length))
    summary.add_row("verify length", _number(recent.verify_length), _number(total.verify_length))
    summary.add_row("accepted by position", _by_position(recent), _by_position(total))
    summary.add_row("verify lengths, 0 to 15", _shares(recent), _shares(total))
    summary.add_row("prompt tokens cached", _percent(recent.cached_ratio), _percent(total.cached_ratio))
    summary.add_row(
        "requests now", f"{status.running_requests} running, {status.waiting_requests} waiting", ""
    )
    verifiers = _verifiers(status) if status.verifiers else Text("no verifier is there", style="red")
    return Group(summary, "", verifiers, "", _drafters(status) if status.drafters else "no drafters")


def _verifiers(status: StatusBody) -> Table:
    table = Table(
        "verifier", "node", "running", "waiting", "tokens/s", "acceptance", "pages", "drafters",
        box=None, pad_edge=False,
    )  # fmt: skip
    for verifier in status.verifiers:
        pairs = [f"{pair.drafter} ({pair.attached_requests})" for pair in verifier.drafters]
        table.add_row(
            verifier.id,
            verifier.node[:8],
            str(verifier.running_requests),
            str(verifier.waiting_requests),
            f"{verifier.tokens_per_s:.0f}",
            _number(verifier.recent.acceptance_length),
            _percent(verifier.page_usage_ratio),
            ", ".join(pairs) or "none: decodes plainly",
        )
    return table


def _drafters(status: StatusBody) -> Table:
    table = Table("drafter", "node", "requests", box=None, pad_edge=False)
    for drafter in status.drafters:
        table.add_row(drafter.id, drafter.node[:8], str(drafter.requests))
    return table


def _by_position(figures: FiguresBody) -> str:
    return "".join(_bar(ratio or 0.0) for ratio in figures.acceptance_by_position) or "-"


def _shares(figures: FiguresBody) -> str:
    most = max(figures.verify_length_shares, default=0.0)
    return "".join(_bar(share / most) for share in figures.verify_length_shares) or "-"


def _bar(height: float) -> str:
    return _BARS[min(len(_BARS) - 1, round(height * (len(_BARS) - 1)))]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
