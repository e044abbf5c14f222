"""A pair's report on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from dspine_cluster.check import USABLE_SHARE, MemoryPlan, PairReport


def print_report(console: Console, report: PairReport, *, gpu_bytes: int, context_tokens: int) -> bool:
    """Print what was found; whether the pair can be served on such GPUs."""
    if report.target is not None:
        target = report.target
        console.print(
            f"target   {target.model_type}: {target.num_gated_delta_layers} Gated DeltaNet and "
            f"{target.num_attention_layers} attention layers, hidden size {target.hidden_size}, "
            f"{_count(report.num_target_parameters)} parameters"
        )
    if report.drafter is not None:
        drafter = report.drafter
        window = "the whole context" if drafter.context_window is None else f"{drafter.context_window} tokens"
        console.print(
            f"drafter  {drafter.kind}: {drafter.num_layers} layers, block size {drafter.block_size}, sees {window}, "
            f"taps after layers {', '.join(map(str, drafter.target_layer_ids))}, "
            f"{_count(report.num_drafter_parameters)} parameters"
        )
    fits = not report.problems
    if report.plan is not None:
        fits &= _print_plan(
            console, report.plan, gpu_bytes, context_tokens, has_drafter=report.drafter is not None
        )
    for problem in report.problems:
        console.print(f"problem: {problem}", style="red", markup=False)
    console.print("can be served" if fits else "cannot be served", style="bold green" if fits else "bold red")
    return fits


def _print_plan(
    console: Console, plan: MemoryPlan, gpu_bytes: int, context_tokens: int, *, has_drafter: bool
) -> bool:
    """Print the plan; whether at least one request fits on each side."""
    console.print(_table("a verifier's memory", _verifier_rows(plan)))
    num_requests = plan.num_verifier_requests(gpu_bytes, context_tokens)
    fits = _print_fit(console, "verifier", num_requests, plan.verifier_weights, gpu_bytes, context_tokens)
    if has_drafter:
        console.print(_table("a drafter's memory", _drafter_rows(plan)))
        num_requests = plan.num_drafter_requests(gpu_bytes, context_tokens)
        fits &= _print_fit(
            console, "drafter", num_requests, plan.drafter_device_weights, gpu_bytes, context_tokens
        )
    return fits


def _print_fit(
    console: Console, side: str, num_requests: int, weights: int, gpu_bytes: int, context_tokens: int
) -> bool:
    gpu = f"a GPU of {gpu_bytes / 1e9:g} GB ({USABLE_SHARE:.0%} usable)"
    if num_requests < 0:
        console.print(f"problem: the {side}'s weights, {_size(weights)}, do not fit {gpu}", style="red")
    elif num_requests == 0:
        console.print(
            f"problem: {gpu} has no room for a request of {context_tokens} tokens on a {side}", style="red"
        )
    else:
        console.print(f"{gpu} holds {num_requests} requests of {context_tokens} tokens on a {side}")
    return num_requests > 0


def _verifier_rows(plan: MemoryPlan) -> list[tuple[str, int]]:
    return [
        ("target weights", plan.target_weights),
        ("fc and hidden_norm of the drafter", plan.projector_weights),
        ("K/V a token", plan.kv_per_token),
        ("features a token", plan.features_per_token),
        ("recurrent state a request", plan.state_per_request),
        ("a block in flight beyond that state", plan.pending_per_request),
    ]


def _drafter_rows(plan: MemoryPlan) -> list[tuple[str, int]]:
    return [
        ("drafter weights with codes", plan.drafter_weights),
        ("target embedding and head", plan.shared_weights),
        ("context K/V a token", plan.context_per_token),
    ]


def _table(title: str, rows: list[tuple[str, int]]) -> Table:
    table = Table(title=title, title_justify="left", box=None, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, num_bytes in rows:
        table.add_row(name, _size(num_bytes))
    return table


def _count(num_parameters: int) -> str:
    return f"{num_parameters / 1e9:.3f} B" if num_parameters >= 1e8 else f"{num_parameters / 1e6:.2f} M"


def _size(num_bytes: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.2f} {unit}"
    return f"{num_bytes} B"
