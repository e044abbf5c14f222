from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import openai
import pytest
import ray
import yaml
from ray import serve
from ray.serve.context import _get_global_client

from dspine_serve.app import build
from dspine_serve.args import AppArgs
from dspine_serve.local_cluster import wait_until
from dspine_serve.proxy_guard import PROXY_SETTINGS
from tests.otlp_receiver import Receiver, receiving

ROOT = Path(__file__).parents[2]
APP = "dspine"


@dataclass(frozen=True)
class Application:
    """The application of `deployments.yaml`, running."""

    url: str
    http: httpx.Client
    openai: openai.OpenAI
    traces: Receiver
    """Of requests whose clients trace them."""

    def stats(self, deployment: str) -> dict[str, float]:
        """Figures of a deployment's one replica."""
        stats: dict[str, float] = serve.get_deployment_handle(deployment, APP).stats.remote().result()
        return stats

    def pids(self, deployment: str) -> set[int]:
        """Processes of a deployment's replicas, those still starting left out."""
        details: dict[str, Any] = _get_global_client().get_serve_details()
        replicas = details["applications"][APP]["deployments"][deployment]["replicas"]
        return {replica["pid"] for replica in replicas if replica["state"] == "RUNNING"}


@pytest.fixture(scope="module")
def application() -> Iterator[Application]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = yaml.safe_load((ROOT / "deployments.yaml").read_text())
    # "local": another Ray on this machine is not joined.
    with patch.dict(os.environ, PROXY_SETTINGS):
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    url = f"http://127.0.0.1:{port}"
    with (
        receiving() as traces,
        httpx.Client(base_url=url, timeout=60) as http,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as client,
    ):
        # However slow the machine, drafters are used.
        more = {
            "drafting": {"verify": "fixed:15"},
            "tracing": {"endpoint": traces.endpoint, "sample_fraction": 0.0},
        }
        args = AppArgs.model_validate(config["applications"][0]["args"] | more)
        serve.run(build(args), name=APP, route_prefix="/")
        running = Application(url, http, client, traces)
        wait_until(lambda: running.stats("Verifier")["connected_drafters"] == 1)
        yield running
    serve.shutdown()
    ray.shutdown()


def connected_unix_sockets(pid: int) -> set[str]:
    """Paths of the Unix sockets at which a process has accepted connections that are open."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(os.readlink(descriptor))
        except FileNotFoundError:
            continue
    connected = "03"
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return {row[7] for row in rows if len(row) > 7 and row[5] == connected and f"socket:[{row[6]}]" in inodes}
