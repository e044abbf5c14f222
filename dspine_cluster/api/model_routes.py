"""The models that a server has: one."""

from __future__ import annotations

import time

from fastapi import FastAPI

from dspine_cluster.api.bodies import ModelCard, ModelList
from dspine_cluster.api.limits import ApiLimits
from dspine_cluster.errors import RequestError


def add_model_routes(app: FastAPI, model_name: str, limits: ApiLimits) -> None:
    """`/v1/models`, as vLLM fills it."""
    card = ModelCard(
        id=model_name,
        object="model",
        created=int(time.time()),
        owned_by="dspine_cluster",
        root=model_name,
        parent=None,
        max_model_len=limits.max_model_len_tokens,
    )

    @app.get("/v1/models")
    async def list_models() -> ModelList:
        return ModelList(object="list", data=[card])

    @app.get("/v1/models/{model:path}")
    async def retrieve_model(model: str) -> ModelCard:
        check_model(model, model_name)
        return card


def check_model(asked: str | None, served: str) -> None:
    """Raises RequestError when a request is for another model."""
    if asked is not None and asked != served:
        raise RequestError(
            f"The model {asked[:200]!r} does not exist; this server has {served!r}.",
            param="model",
            code="model_not_found",
        )
