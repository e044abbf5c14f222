"""What routing saves: cached tokens and time to first token of a simulated cluster, by policy, load and cache size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from random import Random
from typing import Any

from dspine_cluster.bench.environment import describe_environment
from dspine_cluster.bench.placement import measure_placement
from dspine_cluster.bench.statistics import quantile
from dspine_cluster.sim.cluster import POLICIES, ClusterSettings, SimulatedCluster
from dspine_cluster.sim.conversations import ConversationSettings, make_conversations
from dspine_cluster.sim.verifier import VerifierLimits

TOKENS_PER_CHECKPOINT = 1024
"""Host memory for recurrent states goes with the page pool: of a 27 B hybrid target one state takes 151 MB, and the K/V
of 1,024 tokens 64 MB."""
_RIVALS = ("power_of_two", "sticky")


@dataclass(frozen=True, slots=True)
class RoutingSettings:
    """The grid, and how long each of its cells lasts."""

    loads: tuple[float, ...] = (3.0, 6.0, 9.0)
    """Conversations that start a second."""
    caches: tuple[int, ...] = (100_000, 200_000, 400_000)
    """Tokens in each verifier's page pool."""
    duration_s: float = 120.0
    """Virtual; what arrives in the first third only fills the cluster with conversations and is not counted."""
    num_verifiers: int = 8
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Cell:
    """One run."""

    policy: str
    load: float
    cache: int


def run_routing(
    settings: RoutingSettings, num_processes: int, progress: Callable[[], None]
) -> dict[str, Any]:
    """Every policy over the grid, as `dspine bench routing --json` writes it; `progress` is called after each cell."""
    cells = [
        Cell(policy, load, cache)
        for load in settings.loads
        for cache in settings.caches
        for policy in POLICIES
    ]
    rows: list[dict[str, Any]] = []
    # Torch has threads of its own here, which a forked process would not get.
    with ProcessPoolExecutor(num_processes, get_context("spawn")) as pool:
        for row in pool.map(partial(run_cell, settings), cells):
            rows.append(row)
            progress()
    return {
        "environment": describe_environment(),
        "simulated": rows,
        "comparison": compare(rows),
        "placement": measure_placement(),
    }


def run_cell(settings: RoutingSettings, cell: Cell) -> dict[str, Any]:
    """One policy under one load with one cache size; every policy gets the same conversations."""
    limits = VerifierLimits(pool_tokens=cell.cache, max_checkpoints=cell.cache // TOKENS_PER_CHECKPOINT)
    cluster = SimulatedCluster(
        ClusterSettings(num_verifiers=settings.num_verifiers, limits=limits, seed=settings.seed), cell.policy
    )
    trace = make_conversations(
        ConversationSettings(conversations_per_s=cell.load, duration_s=settings.duration_s),
        Random(settings.seed),
    )
    cluster.run(trace, settings.duration_s)
    counted = [served for served in cluster.served if served.arrived_s >= settings.duration_s / 3]
    ttfts_s = sorted(served.ttft_s for served in counted)
    busy = [0.0] * settings.num_verifiers
    for served in counted:
        busy[served.verifier] += served.prompt_tokens - served.cached_tokens + served.output_tokens
    prompt_tokens = sum(served.prompt_tokens for served in counted)
    return {
        "policy": cell.policy,
        "load": cell.load,
        "cache": cell.cache,
        "num_requests": len(counted),
        "mean_prompt_tokens": prompt_tokens / len(counted),
        "cached_token_ratio": sum(served.cached_tokens for served in counted) / prompt_tokens,
        "ttft_p50_s": quantile(ttfts_s, 0.5),
        "ttft_p99_s": quantile(ttfts_s, 0.99),
        "imbalance": max(busy) * len(busy) / sum(busy),
    }


def compare(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Joint placement beside its rivals in the cell where it stands worst."""
    by_cell: dict[tuple[float, int], dict[str, dict[str, Any]]] = {}
    for row in rows:
        by_cell.setdefault((row["load"], row["cache"]), {})[row["policy"]] = row
    figures = {}
    for rival in _RIVALS:
        figures[f"min_cached_over_{rival}"] = min(
            cell["joint"]["cached_token_ratio"] / cell[rival]["cached_token_ratio"]
            for cell in by_cell.values()
        )
    figures["max_ttft_p99_over_better_rival"] = max(
        cell["joint"]["ttft_p99_s"] / min(cell[rival]["ttft_p99_s"] for rival in _RIVALS)
        for cell in by_cell.values()
    )
    return figures
