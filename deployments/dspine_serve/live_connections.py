"""`python -m dspine_serve.live_connections --json FILE`: many clients of the served miniature, half of which leave.

`dspine bench connections` runs it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dspine_cluster.bench.connections import compare_drops
from dspine_cluster.bench.http import StreamTarget
from dspine_cluster.config import EngineConfig
from dspine_serve.args import MAX_ONGOING_REQUESTS
from dspine_serve.held import held, resources
from dspine_serve.local_cluster import LocalCluster, local_cluster, small_args, wait_until

_PROMPT_TOKENS = 32
_IDLE_TIMEOUT_S = 60.0
_ENGINE = EngineConfig(
    max_model_len_tokens=512, max_running_requests=32, pool_tokens=32768, checkpoint_bytes=2**28
)


def measure(num_connections: int, num_tokens: int, num_rounds: int, seed: int) -> dict[str, Any]:
    """Starts a cluster with room for all, measures, and ends it."""
    num_workers = -(-num_connections // MAX_ONGOING_REQUESTS)
    args = small_args(num_workers).model_copy(update={"engine": _ENGINE})
    with local_cluster(args, num_workers) as cluster:
        cluster.wait_until_whole()
        port = urlsplit(cluster.url).port
        assert port is not None
        numbers = random.Random(seed)
        targets = [
            StreamTarget(port, "/v1/completions", _body(numbers, num_tokens)) for _ in range(num_connections)
        ]

        async def held_now() -> dict[str, float]:
            return await asyncio.to_thread(held, cluster)

        asyncio.run(compare_drops(targets[:16], held_now, num_rounds=1, seed=seed))
        before = _idle_resources(cluster, port)
        report = asyncio.run(compare_drops(targets, held_now, num_rounds=num_rounds, seed=seed))
        after = _idle_resources(cluster, port)
    grown = {name: after[name] - before[name] for name in before if after[name] > before[name]}
    return {**report, "grown": grown}


def _body(numbers: random.Random, num_tokens: int) -> dict[str, Any]:
    return {
        "prompt": [numbers.randrange(300, 2000) for _ in range(_PROMPT_TOKENS)],
        "max_tokens": num_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }


def _idle_resources(cluster: LocalCluster, port: int) -> dict[str, float]:
    """The least that is seen within a while: closing takes its time."""
    least = resources(cluster, port)

    def is_settled() -> bool:
        nonlocal least
        now = resources(cluster, port)
        smaller = {name: min(now[name], least[name]) for name in least}
        is_same, least = smaller == least, smaller
        return is_same and not least["connections"]

    wait_until(is_settled, _IDLE_TIMEOUT_S)
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="write the report here")
    parser.add_argument("--connections", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=16, help="of each answer")
    parser.add_argument(
        "--rounds", type=int, default=2, help="of the load without and with clients that leave"
    )
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    report = measure(arguments.connections, arguments.tokens, arguments.rounds, arguments.seed)
    arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
