"""Several Ray nodes on this machine and the application on them, for tests and measurements.

The head node holds the ingress and the directory; each worker has room for one verifier and one drafter.
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import ray
from ray import serve
from ray._private import ray_constants
from ray.cluster_utils import Cluster
from ray.exceptions import RayError
from ray.serve._private.constants import SERVE_NAMESPACE
from ray.serve.context import _get_global_client

from dspine_cluster.config import DraftingConfig, EngineConfig
from dspine_serve.app import build
from dspine_serve.args import AppArgs, DirectoryArgs, DrafterArgs, IngressArgs, VerifierArgs
from dspine_serve.proxy_guard import PROXY_SETTINGS

_APP = "dspine"
_HOST = "127.0.0.1"
_STORE_BYTES = 80 * 2**20
_STATS_TIMEOUT_S = 30.0
_NODE_SETTINGS = {
    # A killed node is noticed after ten seconds instead of fifteen.
    "health_check_period_ms": 1000,
    "health_check_failure_threshold": 10,
    # Replicas are as urgent as whatever else this machine does; Ray would have them wait for it.
    "worker_niceness": 0,
}


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica that runs."""

    replica_id: str
    node_id: str
    pid: int
    actor_name: str


class LocalCluster:
    """What runs, and where. Made by `local_cluster`."""

    def __init__(self, url: str, cluster: Cluster) -> None:
        self.url = url
        self._cluster = cluster

    def replicas(self, deployment: str) -> list[Replica]:
        """The replicas that run, those that start or stop left out."""
        details: dict[str, Any] = _get_global_client().get_serve_details()
        known = details["applications"][_APP]["deployments"][deployment]["replicas"]
        return [
            Replica(replica["replica_id"], replica["node_id"], replica["pid"], replica["actor_name"])
            for replica in known
            if replica["state"] == "RUNNING"
        ]

    def stats(self, deployment: str) -> list[dict[str, float]]:
        """Figures of each replica, in no order."""
        response = serve.get_deployment_handle(deployment, _APP).broadcast("stats")
        stats: list[dict[str, float]] = response.results(timeout_s=_STATS_TIMEOUT_S)
        return stats

    def ongoing_requests(self, deployment: str) -> dict[Replica, int]:
        """Calls that occupy each replica, by its own count."""
        replicas = self.replicas(deployment)
        actors = [ray.get_actor(replica.actor_name, SERVE_NAMESPACE) for replica in replicas]
        counts = [actor.get_num_ongoing_requests.remote() for actor in actors]
        return dict(zip(replicas, ray.get(counts, timeout=_STATS_TIMEOUT_S), strict=True))

    def deploy(self, args: AppArgs) -> None:
        """Start the application, or replace its replicas one by one; returns when all are new."""
        serve.run(build(args), name=_APP, route_prefix="/")

    def wait_until_whole(self, timeout_s: float = 240.0) -> None:
        """Wait until every worker's verifier and drafter run and have found each other. Workers that have ended are
        replaced: Ray ends a node whose agent does not start in time, as on a machine with much other work.

        Raises:
            TimeoutError: they have not.
        """
        wait_until(self._is_whole, timeout_s)

    def _is_whole(self) -> bool:
        for node in list(self._cluster.worker_nodes):
            if node.all_processes["raylet"][0].process.poll() is not None:
                self.remove_worker(node.node_id)
                self.add_worker()
        num_workers = len(self._cluster.worker_nodes)
        nodes = {node.node_id for node in self._cluster.worker_nodes}
        for deployment in ("Verifier", "Drafter"):
            replicas = self.replicas(deployment)
            if len(replicas) != num_workers or {replica.node_id for replica in replicas} != nodes:
                return False
        try:
            verifiers, drafters = self.stats("Verifier"), self.stats("Drafter")
        except (RayError, TimeoutError):
            return False  # one has just gone
        connected = [stats["connected_drafters"] for stats in verifiers]
        channels = [stats["drafter_channels"] for stats in drafters]
        return connected == channels == [1] * num_workers

    def add_worker(self) -> None:
        """One more node."""
        self._cluster.add_node(
            node_ip_address=_HOST,
            num_cpus=1,
            resources={"dspine_verifier": 1, "dspine_drafter": 1},
            object_store_memory=_STORE_BYTES,
        )

    def raylet_pid(self, node_id: str) -> int:
        """The process of which all processes of a worker node are children."""
        pid: int = self._worker(node_id).all_processes["raylet"][0].process.pid
        return pid

    def remove_worker(self, node_id: str) -> None:
        """Kill what is left of a node."""
        self._cluster.remove_node(self._worker(node_id), allow_graceful=False)

    def _worker(self, node_id: str) -> Any:
        [node] = [node for node in self._cluster.worker_nodes if node.node_id == node_id]
        return node


def small_args(num_workers: int) -> AppArgs:
    """The miniature with a verifier and a drafter on each worker, in little memory."""
    return AppArgs(
        engine=EngineConfig(
            max_model_len_tokens=2048,
            max_running_requests=16,
            pool_tokens=32768,
            checkpoint_bytes=256 * 2**20,
        ),
        drafting=DraftingConfig(verify="fixed:15"),  # however slow the machine, drafters are used
        directory=DirectoryArgs(resources={"dspine_ingress": 1}),
        ingresses=IngressArgs(resources={"dspine_ingress": 1}),
        verifiers=VerifierArgs(num_replicas=num_workers, resources={"dspine_verifier": 1}),
        drafters=DrafterArgs(
            num_replicas=num_workers,
            resources={"dspine_drafter": 1},
            pool_tokens=32768,
            listens_on_tcp=True,
        ),
    )


@contextmanager
def local_cluster(args: AppArgs, num_workers: int = 2) -> Iterator[LocalCluster]:
    """Starts the nodes and the application, and ends all processes afterwards. This process is the Ray driver."""
    with (
        tempfile.TemporaryDirectory(prefix="dspine-", ignore_cleanup_errors=True) as folder,
        # No other Ray on this machine is told of this one.
        patch.dict(os.environ, {"RAY_TMPDIR": folder, **PROXY_SETTINGS}),
        # Else the driver replaces the loopback address, at which alone the nodes listen, by another of this machine.
        patch.object(ray_constants, "ENABLE_RAY_CLUSTER", False),
    ):
        cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "node_ip_address": _HOST,
                "num_cpus": 1,
                "resources": {"dspine_ingress": 2},
                "object_store_memory": _STORE_BYTES,
                "include_dashboard": False,
                # Any that is free: the default one may be another Ray's, and Ray drops its test socket unclosed then.
                "dashboard_port": None,
                "_system_config": _NODE_SETTINGS,
            },
        )
        try:
            running = LocalCluster(f"http://{_HOST}:{_free_port()}", cluster)
            for _ in range(num_workers):
                running.add_worker()
            ray.init(cluster.address, log_to_driver=False)
            port = int(running.url.rpartition(":")[2])
            serve.start(proxy_location="HeadOnly", http_options={"host": _HOST, "port": port})
            running.deploy(args)
            yield running
            serve.shutdown()
        finally:
            ray.shutdown()
            cluster.shutdown()


def wait_until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Waits for what other processes bring about.

    Raises:
        TimeoutError: it did not come true in time.
    """
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"the condition did not come true within {timeout_s:.0f} s")
        time.sleep(0.2)


def _free_port() -> int:
    with socket.create_server((_HOST, 0)) as free:
        port: int = free.getsockname()[1]
        return port
