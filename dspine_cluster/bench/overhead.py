"""What a round costs outside the models: real loops, pools and channels around models that compute nothing."""

from __future__ import annotations

import multiprocessing
import secrets
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from dspine_cluster.bench.environment import describe_environment
from dspine_cluster.bench.null_models import HIDDEN_SIZE
from dspine_cluster.bench.overhead_channel import run_channel
from dspine_cluster.bench.overhead_sides import VerifierBench, serve_drafter
from dspine_cluster.bench.stopwatch import Round
from dspine_cluster.errors import ChannelError
from dspine_cluster.garbage import collect_rarely

_TIMEOUT_S = 60.0
_CHANNEL_REQUESTS = 8
_CHANNEL_TOKENS = 16
_CHANNEL_WIDTH = 5120


def run_overhead(requests: Sequence[int], num_rounds: int, *, profile: bool = False) -> dict[str, Any]:
    """Time the rounds of that many requests at once on both sides, which are processes of their own.

    Half of the requests are greedy, half sample without a seed. `host_ms` is the CPU time that a side's loop spends in
    steps and in reading messages while it waits, without the models and the choice of tokens. The choice is what a GPU
    does where there is one; here it would throw the loop's own data out of the caches. So there are two runs: in one
    tokens are looked up, which gives `host_ms`; in the other they are chosen from logits that are there. That one gives
    `with_sampling`, which is everything but the models, and `beside_sampling`, the same without the choice.
    `delivery_ms` is what making texts takes beside the loop, in the thread of whoever asked; it is not in `host_ms`.
    Feature rows are small here: what moving them costs, `channel` tells.
    `wall_ms` is what passed meanwhile, other work on the machine included. With `profile` the functions that take most
    are printed, of the first run.
    """
    collect_rarely()  # as replicas do
    results = [row for count in requests for row in _measure(count, num_rounds, profile=profile)]
    return {
        "environment": describe_environment(),
        "feature_row_bytes": HIDDEN_SIZE * 4,
        "results": results,
        "channel": [run_channel(_CHANNEL_REQUESTS, _CHANNEL_TOKENS, _CHANNEL_WIDTH, num_rounds)],
    }


def _measure(num_requests: int, num_rounds: int, *, profile: bool) -> list[dict[str, Any]]:
    looked_up, bench = _run_both(num_requests, num_rounds, samples=False, profile=profile)
    chosen, _ = _run_both(num_requests, num_rounds, samples=True, profile=False)
    verifier, drafter = (
        _summary(side, num_requests, looked_up[side], chosen[side]) for side in ("verifier", "drafter")
    )
    metrics = bench.loop.metrics
    verifier |= {
        "verified_tokens_mean": metrics.verified_tokens_total / metrics.rounds_total,
        "delivery_ms_median": 1000 * float(np.median(bench.delivery_s)),
        "tokens_mean": metrics.committed_tokens_total / metrics.rounds_total,
    }
    return [verifier, drafter]


def _run_both(
    num_requests: int, num_rounds: int, *, samples: bool, profile: bool
) -> tuple[dict[str, Sequence[Round]], VerifierBench]:
    """The rounds by side, and the verifier after them."""
    secret = secrets.token_bytes(32)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with tempfile.TemporaryDirectory(prefix="dspine-") as folder, ExitStack() as running:
        endpoint = f"unix:{folder}/drafter.sock"
        process = context.Process(
            target=serve_drafter,
            args=(endpoint, secret, num_requests, theirs),
            kwargs={"samples": samples, "profile": profile},
            daemon=True,
        )
        process.start()
        running.callback(process.join)
        running.callback(process.kill)
        _receive(ours)
        bench = VerifierBench(num_requests, samples=samples)
        bench.connect(endpoint, secret)
        rounds = bench.run(num_rounds, profile=profile)
        bench.loop.drafters.close()
        ours.send(num_rounds)
        return {"verifier": rounds, "drafter": _receive(ours)}, bench


def _receive(connection: Connection) -> Any:
    if not connection.poll(_TIMEOUT_S):
        raise ChannelError(f"the drafter's process said nothing for {_TIMEOUT_S:.0f} s")
    return connection.recv()


def _summary(
    side: str, num_requests: int, looked_up: Sequence[Round], chosen: Sequence[Round]
) -> dict[str, Any]:
    """Of the rounds whose tokens were looked up, and of those whose tokens were chosen from logits."""
    host_ms = 1000 * np.array([entry.host for entry in looked_up])  # [num_rounds, 2]
    beside_ms = 1000 * np.array([entry.host for entry in chosen])
    with_sampling_ms = beside_ms + 1000 * np.array([entry.sampling for entry in chosen])
    return {
        "side": side,
        "requests": num_requests,
        "rounds": len(looked_up),
        "host_ms_median": float(np.median(host_ms[:, 0])),
        "host_ms_p99": float(np.percentile(host_ms[:, 0], 99)),
        "host_ms_median_beside_sampling": float(np.median(beside_ms[:, 0])),
        "host_ms_median_with_sampling": float(np.median(with_sampling_ms[:, 0])),
        "host_ms_p99_with_sampling": float(np.percentile(with_sampling_ms[:, 0], 99)),
        "wall_ms_median": float(np.median(host_ms[:, 1])),
    }
