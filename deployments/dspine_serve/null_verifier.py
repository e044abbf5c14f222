"""A verifier whose rounds cost nothing, behind the real ingress, placement, directory and router: for measurements."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import NoReturn

import ray
from ray import serve
from ray.serve.handle import DeploymentHandle

from dspine_cluster.config import VerifierConfig
from dspine_cluster.core.cluster_records import (
    ANY_MODELS,
    Fingerprints,
    ReplicaLoad,
    ReplicaReport,
    VerifierRecord,
)
from dspine_cluster.identity import fingerprints_of, make_hello
from dspine_cluster.sources import locate_model
from dspine_cluster.types import FinishReason, GenerateRequest, RoundOutput, Usage
from dspine_cluster.verifier.sinks import Sink
from dspine_serve.args import MAX_ONGOING_REQUESTS
from dspine_serve.publishing import publish
from dspine_serve.round_items import ItemPacer

TOKENS_PER_ROUND = 4
TEXT = "four tokens of text "
_ROUND_S = 0.001
"""A turn of the event loop would be shorter, but leave Serve's own thread no time."""
_MAX_AHEAD = 512
"""Rounds that a stream may lag behind: a real verifier waits for nobody, but is slower."""


class NullVerifier:
    """Gives every stream a round every millisecond, as a verifier does after each pass."""

    def __init__(self, config: VerifierConfig, directory: DeploymentHandle, model_name: str) -> None:
        del model_name
        drafter = None if config.drafter.name == "none" else locate_model(config.drafter)
        hello = make_hello("null", locate_model(config.target), drafter, config.engine.dtype)
        self._sinks: set[Sink] = set()
        self._admitted: list[str] = []
        self._pacer = ItemPacer()
        record = VerifierRecord(
            replica_id=serve.get_replica_context().replica_id.unique_id,
            node_id=ray.get_runtime_context().get_node_id(),
            epoch=hello.epoch,
            fingerprints=fingerprints_of(hello),
            max_requests=MAX_ONGOING_REQUESTS,
        )
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(publish(directory, record, self._report)),
            loop.create_task(self._run_rounds()),
        ]

    async def generate(
        self, request: GenerateRequest, wanted: Fingerprints = ANY_MODELS
    ) -> AsyncGenerator[bytes, None]:
        """Rounds of constant text until `max_tokens`."""
        del wanted
        self._admitted.append(request.request_id)
        async with aclosing(self._rounds(request.stop.max_tokens // TOKENS_PER_ROUND)) as batches:
            async for item in self._pacer.items(batches):
                yield item

    async def _rounds(self, num_left: int) -> AsyncGenerator[list[RoundOutput], None]:
        sink = Sink(asyncio.get_running_loop())
        self._sinks.add(sink)
        try:
            while num_left:
                outputs = (await sink.take())[:num_left]
                num_left -= len(outputs)
                if not num_left:
                    outputs[-1] = replace(outputs[-1], finish_reason=FinishReason.LENGTH)
                yield outputs
        finally:
            self._sinks.discard(sink)

    async def check_health(self) -> None:
        """It lives."""

    async def _run_rounds(self) -> NoReturn:
        output = RoundOutput(
            tuple(range(300, 300 + TOKENS_PER_ROUND)), TEXT, TOKENS_PER_ROUND - 1, usage=Usage()
        )
        while True:
            for sink in self._sinks:
                if len(sink) < _MAX_AHEAD:
                    sink.put(output)
            await asyncio.sleep(_ROUND_S)

    def _report(self) -> ReplicaReport:
        admitted, self._admitted = tuple(self._admitted), []
        return ReplicaReport(ReplicaLoad(running_requests=len(self._sinks)), admitted=admitted)
