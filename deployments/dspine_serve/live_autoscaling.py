"""`python -m dspine_serve.live_autoscaling --json FILE`: an autoscaled application on this machine, under load.

Replicas are real and serve the miniature, but their passes and drafts take modelled times, so that more of them bear
more however few cores there are. What they are asked changes in rate and in acceptance; who is added and taken away,
when, and by which reasons is reported.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import re
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import ray
import yaml
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.schema import ServeDeploySchema

from dspine_cluster.bench.scaling_trace import Phase, ScalingSample, phases_of, summarise_scaling
from dspine_cluster.core.cost_model import CostModel
from dspine_serve.local_cluster import wait_until

_APP = "dspine"
_HOST = "127.0.0.1"
_MAX_TOKENS = 48
_SAMPLE_S = 1.0
_TIMEOUT_S = 300.0
_EXAMPLES = Path(__file__).parents[2] / "examples"
PACE = CostModel(
    weights_s=0.4,
    token_s=1e-4,
    cached_token_s=0.0,
    state_s=0.08,
    step_s=0.01,
    draft_s=0.3,
    draft_request_s=0.01,
)
"""Step times: hundreds of times those of the miniature, so that several replicas share a core."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """An application that runs."""

    url: str
    logs: Path
    """Serve's."""

    def numbers(self) -> dict[str, tuple[int, int]]:
        """Replicas that there are to be and that run, by deployment."""
        deployments = _get_global_client().get_serve_details()["applications"][_APP]["deployments"]
        return {
            name: (
                details["target_num_replicas"],
                sum(replica["state"] == "RUNNING" for replica in details["replicas"]),
            )
            for name, details in deployments.items()
        }

    def reasons(self) -> list[str]:
        """What the controller has logged of its changes."""
        text = "".join(path.read_text() for path in sorted(self.logs.glob("controller_[0-9]*.log")))
        return re.findall(r"Autoscaling: (.*)", text)


def scaled_args(pace_file: Path, max_verifiers: int, down_hold_s: float) -> dict[str, Any]:
    """Arguments of an application whose numbers follow within seconds."""
    limits = {"max_replicas": max_verifiers, "down_hold_s": down_hold_s, "down_cooldown_s": down_hold_s / 2}
    return {
        "engine": {
            "paced_by": str(pace_file),
            "max_running_requests": 12,
            "max_model_len_tokens": 1024,
            "pool_tokens": 16384,
            "checkpoint_bytes": 2**24,
        },
        "verifiers": {"autoscaled": True, "num_cpus": 0.1},
        "drafters": {"autoscaled": True, "num_cpus": 0.1, "pool_tokens": 16384},
        "autoscaling": {
            "inter_token_s": 0.6,
            "smoothing_s": 12.0,
            "trend_s": 20.0,
            "lead_s": 5.0,
            "verifiers": limits,
            "drafters": limits | {"min_replicas": 1},
        },
    }


@contextmanager
def scaled_application(max_verifiers: int, down_hold_s: float) -> Iterator[Scaled]:
    """Ray on this machine and the application on it, with one verifier and one drafter; ended on the way out.

    Raises:
        TimeoutError: it does not come up.
    """
    with tempfile.TemporaryDirectory(prefix="dspine-", ignore_cleanup_errors=True) as folder:
        pace_file = Path(folder) / "pace.yaml"
        pace_file.write_text(yaml.safe_dump(asdict(PACE)))
        with socket.create_server((_HOST, 0)) as free:
            port: int = free.getsockname()[1]
        config = {
            "proxy_location": "HeadOnly",
            "http_options": {"host": _HOST, "port": port},
            "applications": [
                {
                    "name": _APP,
                    "route_prefix": "/",
                    "import_path": "dspine_serve.app:build",
                    "autoscaling_policy": {"policy_function": "dspine_serve.autoscaler:Autoscaler"},
                    "args": scaled_args(pace_file, max_verifiers, down_hold_s),
                }
            ],
        }
        ray.init(
            "local",
            num_cpus=16,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.WARNING,
            # Replicas are as urgent as whoever asks them.
            _system_config={"worker_niceness": 0},
        )
        try:
            serve.start(proxy_location="HeadOnly", http_options={"host": _HOST, "port": port})
            _get_global_client().deploy_apps(ServeDeploySchema.model_validate(config), _blocking=False)
            session = Path(ray._private.worker._global_node.get_session_dir_path())
            running = Scaled(f"http://{_HOST}:{port}", session / "logs" / "serve")
            wait_until(lambda: _is_ready(running), _TIMEOUT_S)
            yield running
            serve.shutdown()
        finally:
            ray.shutdown()


def _is_ready(running: Scaled) -> bool:
    details = _get_global_client().get_serve_details()["applications"][_APP]
    return bool(details["status"] == "RUNNING")


async def ask(client: httpx.AsyncClient, task: str, seed: int) -> str | None:
    """One request of a task, answered whole; what went wrong with it, if anything did."""
    body = json.loads((_EXAMPLES / f"{task}.json").read_text())
    body |= {"model": "miniature", "max_tokens": _MAX_TOKENS, "temperature": 0.7, "seed": seed}
    try:
        answer = await client.post("/v1/chat/completions", json=body)
    except httpx.HTTPError as error:
        return type(error).__name__
    return None if answer.is_success else f"HTTP {answer.status_code}"


async def run_phases(
    running: Scaled, phases: Sequence[Phase], is_over: Callable[[ScalingSample], bool] | None = None
) -> tuple[list[ScalingSample], Counter[str]]:
    """Ask what `phases` say, and look every second, until the end or until `is_over`; also how many requests failed.

    Raises:
        httpx.HTTPError: the application does not tell its state.
    """
    samples: list[ScalingSample] = []
    asked: list[asyncio.Task[str | None]] = []
    limits = httpx.Limits(max_connections=None)
    started_s = time.monotonic()

    async def look(client: httpx.AsyncClient) -> None:
        while not (samples and is_over is not None and is_over(samples[-1])):
            samples.append(await _sample(running, client, started_s))
            await asyncio.sleep(_SAMPLE_S)

    async def load(client: httpx.AsyncClient) -> None:
        ends_s = started_s
        for phase in phases:
            ends_s += phase.seconds
            while (now_s := time.monotonic()) < ends_s:
                asked.append(asyncio.create_task(ask(client, phase.task, len(asked))))
                await asyncio.sleep(min(1.0 / phase.requests_per_s, ends_s - now_s))

    async with httpx.AsyncClient(base_url=running.url, timeout=_TIMEOUT_S, limits=limits) as client:
        both = [asyncio.create_task(look(client)), asyncio.create_task(load(client))]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for task in both:
            task.cancel()
        for result in await asyncio.gather(*both, return_exceptions=True):
            if isinstance(result, Exception):  # who was told to end is none
                raise result
        answers = await asyncio.gather(*asked)
    return samples, Counter(failure for failure in answers if failure is not None)


async def _sample(running: Scaled, client: httpx.AsyncClient, started_s: float) -> ScalingSample:
    status = (await client.get("/dspine/status")).raise_for_status().json()
    numbers = await asyncio.to_thread(running.numbers)
    return ScalingSample(
        at_s=time.monotonic() - started_s,
        verifiers=numbers["Verifier"][0],
        drafters=numbers["Drafter"][0],
        serving_verifiers=numbers["Verifier"][1],
        serving_drafters=numbers["Drafter"][1],
        running_requests=status["running_requests"],
        waiting_requests=status["waiting_requests"],
        acceptance_length=status["recent"]["acceptance_length"],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="write the report here")
    parser.add_argument("--step-s", type=float, default=60.0, help="of most phases")
    parser.add_argument("--constant-s", type=float, default=600.0, help="of the last one")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    phases = phases_of(arguments.step_s, arguments.constant_s)
    with scaled_application(max_verifiers=4, down_hold_s=40.0) as running:
        samples, failures = asyncio.run(run_phases(running, phases))
        report = {
            "failed_requests": failures,
            "phases": summarise_scaling(phases, samples),
            "reasons": running.reasons(),
            "samples": [asdict(sample) for sample in samples],
        }
    arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
