"""The ingress: HTTP in OpenAI's shape, and the placement of each request on a verifier."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle

from dspine_cluster.api.guarding.admission import Admission
from dspine_cluster.api.http_config import HttpConfig
from dspine_cluster.api.limits import ApiLimits
from dspine_cluster.api.metrics_route import add_metrics_route, cluster_figures
from dspine_cluster.api.page import add_page_route
from dspine_cluster.api.prompting.chat_template import ChatTokenizer
from dspine_cluster.api.routes import create_app
from dspine_cluster.api.status_routes import add_status_routes
from dspine_cluster.config import EngineConfig, ModelSource, TracingConfig
from dspine_cluster.core.cluster_records import ClusterUpdates
from dspine_cluster.core.cluster_status import ClusterStatus, StatusBoard
from dspine_cluster.core.placement import Placer
from dspine_cluster.core.placement_score import PlacementConfig
from dspine_cluster.identity import fingerprints_of, make_hello
from dspine_cluster.models.config import parse_target_config
from dspine_cluster.models.folder import CONFIG_FILE, read_json
from dspine_cluster.observability.tracing import open_tracing
from dspine_cluster.sources import locate_model
from dspine_serve.following import Follower
from dspine_serve.generator import ServeGenerator
from dspine_serve.logs import log_like_serve
from dspine_serve.placing import Placing
from dspine_serve.prompt_keys import KeyMaker
from dspine_serve.ray_metrics import export_metrics
from dspine_serve.scaling_news import follow_news


@dataclass(frozen=True, slots=True)
class IngressConfig:
    """What all ingress replicas of an application have in common."""

    model_name: str
    target: ModelSource
    drafter: ModelSource
    engine: EngineConfig
    """The verifiers'."""
    http: HttpConfig
    tracing: TracingConfig
    placement: PlacementConfig
    max_body_bytes: int
    max_choices: int
    is_autoscaled: bool = False

    def key_maker(self, target: Path) -> KeyMaker:
        """Makes the page keys that the verifiers have.

        Raises:
            ConfigError, CheckpointError: a model cannot be found, or its folder is damaged.
        """
        drafter = None if self.drafter.name == "none" else locate_model(self.drafter)
        hello = make_hello("ingress", target, drafter, self.engine.dtype)
        return KeyMaker(fingerprints_of(hello), self.engine.dtype, self.engine.prefix_cache)


@serve.ingress()
class Ingress:
    """Checks, encodes, places and forwards requests, and streams the answers."""

    def __init__(
        self,
        config: IngressConfig,
        directory: DeploymentHandle,
        verifier: DeploymentHandle,
        drafter: DeploymentHandle | None,
    ) -> None:
        """`drafter` is never called: Serve deploys what the ingress was bound to."""
        del drafter
        log_like_serve()
        folder = locate_model(config.target)
        self._placing = Placing(directory.remove.remote, Placer(config.placement))
        self._board = StatusBoard()
        loop = asyncio.get_running_loop()
        self._admission = Admission(config.http.max_open_requests, config.http.max_waiting_tokens)
        context = serve.get_replica_context()
        replica_id = context.replica_id.unique_id
        self._tracing = open_tracing(config.tracing, replica_id)
        self._app = create_app(
            ServeGenerator(verifier, self._placing, config.key_maker(folder), self._tracing),
            ChatTokenizer.from_folder(folder),
            config.model_name,
            ApiLimits(
                max_model_len_tokens=config.engine.max_model_len_tokens,
                vocab_size=parse_target_config(read_json(folder / CONFIG_FILE)).vocab_size,
                max_body_bytes=config.max_body_bytes,
                max_choices=config.max_choices,
            ),
            config.http,
            self._admission,
            self._tracing,
        )
        add_page_route(self._app)
        add_status_routes(self._app, config.model_name, self._status)
        self._autoscaling: dict[str, float] = {}
        self._tasks = [loop.create_task(Follower(directory, self._take).run())]
        if config.is_autoscaled:
            self._tasks.append(loop.create_task(follow_news(context.app_name, self._take_news)))
        add_metrics_route(
            self._app,
            lambda: cluster_figures(
                replica_id, config.model_name, self._figures(), self._status(), self._autoscaling
            ),
        )
        self._tasks.append(loop.create_task(export_metrics(replica_id, config.model_name, self._figures)))

    def __serve_build_asgi_app__(self) -> FastAPI:
        return self._app

    async def stats(self) -> dict[str, float]:
        """Placements by reason, streams that were resumed or lost, and what is held now."""
        return {**self._figures(), "event_loop_tasks": len(asyncio.all_tasks())}

    def _figures(self) -> dict[str, float]:
        return {**self._placing.stats(), **self._admission.stats(), **self._tracing.figures()}

    def _status(self) -> ClusterStatus:
        return self._board.status(time.monotonic())

    async def drain(self) -> int:
        """Refuse what is new with status 503 and Retry-After from now on; what has begun goes on. Returns how many
        completions that is."""
        self._admission.is_draining = True
        return self._admission.num_open

    def _take(self, updates: ClusterUpdates) -> None:
        self._placing.apply(updates)
        self._board.apply(updates.events, time.monotonic())

    def _take_news(self, figures: dict[str, float]) -> None:
        self._autoscaling = figures

    async def __del__(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.to_thread(self._tracing.close)
