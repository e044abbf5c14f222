"""A verifier replica: the engine's service, told through the directory which drafters to use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import ray
from ray.serve.handle import DeploymentHandle

from dspine_cluster.config import VerifierConfig, limit_threads
from dspine_cluster.errors import DspineError
from dspine_cluster.types import GenerateRequest, RoundOutput
from dspine_cluster.verifier.service import VerifierService
from dspine_serve.discovery import follow


class Verifier:
    """Ready once the weights are loaded and warm."""

    def __init__(self, config: VerifierConfig, directory: DeploymentHandle) -> None:
        limit_threads()
        self._service = VerifierService(config)
        self._service.start()
        node_id = ray.get_runtime_context().get_node_id()
        self._following = asyncio.get_running_loop().create_task(
            follow(directory, node_id, self._service.set_drafter_endpoints)
        )

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[RoundOutput | DspineError, None]:
        """One item a round. A refusal is an item too: what is raised here, Serve logs as a fault and wraps."""
        try:
            async with aclosing(self._service.generate(request)) as outputs:
                async for output in outputs:
                    yield output
        except DspineError as error:
            yield error

    async def stats(self) -> dict[str, float]:
        return self._service.stats()

    async def check_health(self) -> None:
        self._service.check_health()

    async def __del__(self) -> None:
        self._following.cancel()
        self._service.stop()
