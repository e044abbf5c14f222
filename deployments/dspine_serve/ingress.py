"""The ingress: HTTP in OpenAI's shape, in front of the verifiers."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle

from dspine_cluster.api.chat_template import ChatTokenizer
from dspine_cluster.api.limits import ApiLimits
from dspine_cluster.api.routes import create_app
from dspine_cluster.config import ModelSource
from dspine_cluster.models.config import parse_target_config
from dspine_cluster.models.folder import CONFIG_FILE, read_json
from dspine_cluster.sources import locate_model
from dspine_serve.generator import ServeGenerator


@dataclass(frozen=True, slots=True)
class IngressConfig:
    model_name: str
    target: ModelSource
    max_model_len_tokens: int
    max_body_bytes: int
    max_choices: int


@serve.ingress()
class Ingress:
    """Checks, encodes and forwards requests, and streams the answers."""

    def __init__(
        self, config: IngressConfig, verifier: DeploymentHandle, drafter: DeploymentHandle | None
    ) -> None:
        """`drafter` is never called: Serve deploys what the ingress was bound to."""
        del drafter
        folder = locate_model(config.target)
        self._app = create_app(
            ServeGenerator(verifier),
            ChatTokenizer.from_folder(folder),
            config.model_name,
            ApiLimits(
                max_model_len_tokens=config.max_model_len_tokens,
                vocab_size=parse_target_config(read_json(folder / CONFIG_FILE)).vocab_size,
                max_body_bytes=config.max_body_bytes,
                max_choices=config.max_choices,
            ),
        )

    def __serve_build_asgi_app__(self) -> FastAPI:
        return self._app
