"""`python -m dspine_serve.live_http --json FILE`: what the HTTP interface costs, beside a bare Serve application.

`dspine bench http` runs it. Verifiers whose rounds cost nothing stream through the real ingress, placement, directory
and router; the bare application streams events that are constant. Both are in one Serve instance, and take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import StreamingResponse

from dspine_cluster.bench.http import StreamTarget, compare
from dspine_cluster.config import EngineConfig, ModelSource
from dspine_serve.app import build_with
from dspine_serve.args import INGRESS_MAX_ONGOING_REQUESTS, AppArgs
from dspine_serve.null_verifier import TEXT, TOKENS_PER_ROUND, NullVerifier
from dspine_serve.proxy_guard import guard_proxies

_HOST = "127.0.0.1"
_PROMPT = list(range(300, 364))
_CHUNK = {
    "id": "cmpl-" + 32 * "0",
    "object": "text_completion",
    "created": 1,
    "model": "miniature",
    "choices": [{"index": 0, "text": TEXT, "finish_reason": None, "logprobs": None}],
}
_FRAME = b"data: " + json.dumps(_CHUNK, separators=(",", ":")).encode() + b"\n\n"


class Bare:
    """As little as an application can do that streams events."""

    async def __call__(self, request: Request) -> StreamingResponse:
        body = await request.json()
        return StreamingResponse(_frames(body["events"]), media_type="text/event-stream")


async def _frames(num_events: int) -> AsyncIterator[bytes]:
    for _ in range(num_events):
        yield _FRAME
        await asyncio.sleep(0)  # as other streams have theirs in between
    yield b"data: [DONE]\n\n"


def measure(num_streams: int, num_events: int, num_rounds: int, num_first_bytes: int) -> dict[str, Any]:
    """Starts Ray on this machine, measures, and ends it."""
    with socket.create_server((_HOST, 0)) as free:
        port: int = free.getsockname()[1]
    guard_proxies()
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        serve.start(http_options={"host": _HOST, "port": port})
        args = AppArgs(
            drafter=ModelSource("none"),
            engine=EngineConfig(max_model_len_tokens=TOKENS_PER_ROUND * num_events + len(_PROMPT)),
        )
        serve.run(build_with(NullVerifier, args), name="dspine", route_prefix="/")
        bare_app = serve.deployment(
            Bare, max_ongoing_requests=INGRESS_MAX_ONGOING_REQUESTS, ray_actor_options={"num_cpus": 0.1}
        ).bind()
        serve.run(bare_app, name="bare", route_prefix="/bare")

        def served(events: int) -> StreamTarget:
            body = {"prompt": _PROMPT, "max_tokens": TOKENS_PER_ROUND * events, "stream": True}
            return StreamTarget(port, "/v1/completions", body)

        def bare(events: int) -> StreamTarget:
            return StreamTarget(port, "/bare", {"events": events, "prompt": _PROMPT})

        return asyncio.run(
            compare(
                served(num_events),
                bare(num_events),
                served(2),
                bare(2),
                num_streams=num_streams,
                num_rounds=num_rounds,
                num_first_bytes=num_first_bytes,
            )
        )
    finally:
        serve.shutdown()
        ray.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="write the report here")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--events", type=int, default=900, help="of each stream")
    parser.add_argument("--rounds", type=int, default=3, help="in which both take their turn")
    parser.add_argument("--first-bytes", type=int, default=200, help="requests of each, one after the other")
    arguments = parser.parse_args()
    report = measure(arguments.streams, arguments.events, arguments.rounds, arguments.first_bytes)
    arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
