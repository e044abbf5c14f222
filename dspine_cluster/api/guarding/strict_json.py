"""Parses bodies with pydantic's JSON parser, which refuses what Python's lets through: NaN, infinities and halves of
surrogate pairs, which no tokenizer can encode. And counts first what takes long to look at: nobody else is answered
meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.exceptions import HTTPException

from dspine_cluster.api.json_size import MAX_CONTAINERS, has_too_many_containers


class _StrictJsonRequest(Request):
    async def json(self) -> Any:
        body = await self.body()
        if has_too_many_containers(body):
            raise HTTPException(
                HTTPStatus.BAD_REQUEST, f"The body has more than {MAX_CONTAINERS} JSON objects and lists."
            )
        try:
            return from_json(body, allow_inf_nan=False)
        except ValueError as error:
            raise json.JSONDecodeError(str(error), "", 0) from error


class StrictJsonRoute(APIRoute):
    """The route class of an application that takes JSON from strangers."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            return await handle(_StrictJsonRequest(request.scope, request.receive))

        return handle_strictly
