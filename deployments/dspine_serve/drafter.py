"""A drafter replica: the drafter's service at endpoints of its own. It tells the directory of itself."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import ray
from ray import serve
from ray.serve.handle import DeploymentHandle

from dspine_cluster.config import DrafterServiceConfig, EngineConfig, ModelSource, limit_threads
from dspine_cluster.core.cluster_records import DrafterRecord
from dspine_cluster.drafter.service import DrafterService
from dspine_cluster.garbage import collect_rarely
from dspine_cluster.identity import fingerprints_of
from dspine_serve.args import DrafterArgs
from dspine_serve.logs import log_like_serve
from dspine_serve.publishing import publish
from dspine_serve.ray_metrics import export_metrics
from dspine_serve.sockets import default_socket_folder, remove_stale_sockets


@dataclass(frozen=True, slots=True)
class DrafterConfig:
    """What all drafter replicas of an application have in common."""

    target: ModelSource
    drafter: ModelSource
    engine: EngineConfig
    """The verifiers'; features come in its dtype."""
    args: DrafterArgs
    secret: str = field(repr=False)

    def service_config(self, endpoints: tuple[str, ...]) -> DrafterServiceConfig:
        """The configuration of one replica.

        Raises:
            ConfigError: a value is out of range.
        """
        return DrafterServiceConfig(
            target=self.target,
            drafter=self.drafter,
            endpoints=endpoints,
            secret=self.secret,
            dtype=self.engine.dtype,
            device=self.args.device,
            max_context_tokens=self.args.max_context_tokens or self.engine.max_model_len_tokens,
            pool_tokens=self.args.pool_tokens,
            memory_fraction=self.args.memory_fraction,
            paced_by=self.engine.paced_by,
        )


class Drafter:
    """Ready once the weights are loaded and warm. Rounds reach it over its endpoints, never over Serve."""

    def __init__(self, config: DrafterConfig, directory: DeploymentHandle, model_name: str) -> None:
        log_like_serve()
        limit_threads()
        collect_rarely()
        replica_id = serve.get_replica_context().replica_id.unique_id
        folder = Path(config.args.socket_folder) if config.args.socket_folder else default_socket_folder()
        remove_stale_sockets(folder)
        endpoints = [f"unix:{folder}/drafter-{replica_id}.sock"]
        if config.args.listens_on_tcp:
            endpoints.append(f"tcp:{ray.util.get_node_ip_address()}:0")
        self._service = DrafterService.load(config.service_config(tuple(endpoints)))
        self._service.start()
        self._directory = directory
        self._record = DrafterRecord(
            replica_id=replica_id,
            node_id=ray.get_runtime_context().get_node_id(),
            local_endpoints=tuple(e for e in self._service.endpoints if e.startswith("unix:")),
            remote_endpoints=tuple(e for e in self._service.endpoints if e.startswith("tcp:")),
            epoch=self._service.hello.epoch,
            fingerprints=fingerprints_of(self._service.hello),
        )
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(publish(directory, self._record, self._service.take_report)),
            loop.create_task(export_metrics(replica_id, model_name, self._service.stats)),
        ]

    async def stats(self) -> dict[str, float]:
        return self._service.stats()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Serve's controller is told of this every second where it scales."""
        return self._service.autoscaling_stats()

    async def check_health(self) -> None:
        self._service.check_health()

    async def __del__(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._directory.remove.remote(self._record.replica_id)
        self._service.stop()
