"""A verifier replica: the engine's service. It tells the directory of itself, and hears which drafters to use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import ray
from ray import serve
from ray.serve.handle import DeploymentHandle

from dspine_cluster.config import VerifierConfig, limit_threads
from dspine_cluster.core.cluster_records import ANY_MODELS, Fingerprints, VerifierRecord
from dspine_cluster.errors import DspineError
from dspine_cluster.garbage import collect_rarely
from dspine_cluster.identity import fingerprints_of
from dspine_cluster.observability.tracing import open_tracing
from dspine_cluster.types import GenerateRequest
from dspine_cluster.verifier.service import VerifierService
from dspine_serve.args import MAX_ONGOING_REQUESTS
from dspine_serve.following import follow_drafters
from dspine_serve.logs import log_like_serve
from dspine_serve.pins import OtherModelsError
from dspine_serve.publishing import publish
from dspine_serve.ray_metrics import export_metrics
from dspine_serve.round_items import ItemPacer


class Verifier:
    """Ready once the weights are loaded and warm."""

    def __init__(self, config: VerifierConfig, directory: DeploymentHandle, model_name: str) -> None:
        log_like_serve()
        limit_threads()
        collect_rarely()
        replica_id = serve.get_replica_context().replica_id.unique_id
        self._tracing = open_tracing(config.tracing, replica_id)
        self._service = VerifierService(config, tracing=self._tracing)
        self._service.start()
        self._directory = directory
        self._pacer = ItemPacer()
        self._record = VerifierRecord(
            replica_id=replica_id,
            node_id=ray.get_runtime_context().get_node_id(),
            epoch=self._service.hello.epoch,
            fingerprints=fingerprints_of(self._service.hello),
            max_requests=min(self._service.max_requests, MAX_ONGOING_REQUESTS),
        )
        drafters = follow_drafters(
            directory, self._record.node_id, self._record.fingerprints, self._service.set_drafter_endpoints
        )
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(publish(directory, self._record, self._service.take_report)),
            loop.create_task(drafters),
            loop.create_task(export_metrics(self._record.replica_id, model_name, self._service.stats)),
        ]

    async def generate(
        self, request: GenerateRequest, wanted: Fingerprints = ANY_MODELS
    ) -> AsyncGenerator[bytes | DspineError, None]:
        """One item a round, or of several rounds where these come faster than items are passed on, by a target and a
        tokenizer that fit `wanted`. A refusal is an item too: what is raised here, Serve logs as a fault and wraps."""
        if not self._record.fingerprints.fits_request(wanted):
            yield OtherModelsError("this replica has another target or tokenizer")
            return
        try:
            async with aclosing(self._service.rounds(request)) as batches:
                async for item in self._pacer.items(batches):
                    yield item
        except DspineError as error:
            yield error

    async def stats(self) -> dict[str, float]:
        return {**self._service.stats(), "event_loop_tasks": len(asyncio.all_tasks())}

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Serve's controller is told of this every second where it scales."""
        return await self._service.autoscaling_stats()

    async def check_health(self) -> None:
        self._service.check_health()

    async def __del__(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._directory.remove.remote(self._record.replica_id)
        self._service.stop()
        await asyncio.to_thread(self._tracing.close)
