"""Every failure in OpenAI's error shape: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from dspine_cluster.api.bodies import ErrorBody, ErrorDetail
from dspine_cluster.errors import EngineStoppedError, OverloadedError, RequestError

_logger = logging.getLogger(__name__)
_MAX_MESSAGE_CHARS = 1000
DOCUMENTED: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorBody, "description": "The request is wrong, or may not be served."},
    "5XX": {"model": ErrorBody, "description": "The server cannot answer now."},
}
"""What the OpenAPI document says of the answers that report a failure."""
_NOT_FOUND_CODES = frozenset({"model_not_found"})


@dataclass(frozen=True, slots=True)
class ApiError:
    """An HTTP answer that reports a failure."""

    status: int
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> ErrorBody:
        message = self.message[:_MAX_MESSAGE_CHARS]
        return ErrorBody(error=ErrorDetail(message=message, type=self.type, param=self.param, code=self.code))

    def response(self) -> JSONResponse:
        return JSONResponse(self.body().model_dump(), status_code=self.status, headers=dict(self.headers))


def body_too_large(max_body_bytes: int) -> ApiError:
    return ApiError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"The body is larger than {max_body_bytes} bytes.",
        code="request_too_large",
        headers={"Connection": "close"},
    )


def headers_too_large(max_header_bytes: int) -> ApiError:
    return ApiError(
        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
        f"The headers are larger than {max_header_bytes} bytes.",
        code="request_too_large",
        headers={"Connection": "close"},
    )


def encoded_body(encoding: str) -> ApiError:
    return ApiError(
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        f"Content-Encoding: {encoding[:100]!r} is not supported; send the body as it is.",
        code="unsupported_content_encoding",
        headers={"Accept-Encoding": "identity", "Connection": "close"},
    )


def body_too_slow(timeout_s: float) -> ApiError:
    return ApiError(
        HTTPStatus.REQUEST_TIMEOUT,
        f"The body did not arrive within {timeout_s:g} seconds.",
        code="request_timeout",
        headers={"Connection": "close"},
    )


def describe(error: Exception) -> ApiError:
    """What a client is told about `error`. Failures that are not its own are logged and told without details."""
    match error:
        case RequestError():
            status = HTTPStatus.NOT_FOUND if error.code in _NOT_FOUND_CODES else HTTPStatus.BAD_REQUEST
            return ApiError(status, str(error), param=error.param, code=error.code)
        case OverloadedError():
            return ApiError(
                HTTPStatus.TOO_MANY_REQUESTS,
                str(error),
                type="rate_limit_error",
                code=error.code,
                headers={"Retry-After": str(max(1, math.ceil(error.retry_after_s)))},
            )
        case EngineStoppedError():
            _logger.warning("The engine is not available: %s", error)
            return ApiError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"The model is not available right now: {error}",
                type="server_error",
                code="engine_stopped",
                headers={"Retry-After": "2"},
            )
        case RequestValidationError():
            return _describe_validation(error)
        case HTTPException():
            return ApiError(
                error.status_code,
                str(error.detail),
                code=_HTTP_CODES.get(error.status_code),
                headers=error.headers or {},
            )
    _logger.error("A request failed inside the server", exc_info=error)
    return ApiError(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "The server failed to answer this request; its log has the details.",
        type="server_error",
        code="internal_error",
    )


_HTTP_CODES: Mapping[int, str] = {404: "not_found", 405: "method_not_allowed"}


def _describe_validation(error: RequestValidationError) -> ApiError:
    problems = error.errors()
    first = problems[0]
    if first["type"] == "json_invalid":
        return ApiError(
            HTTPStatus.BAD_REQUEST,
            f"The body is not valid JSON: {first['ctx']['error']}.",
            code="invalid_json",
        )
    if not isinstance(error.body, dict):
        return ApiError(
            HTTPStatus.BAD_REQUEST,
            "The body must be a JSON object, sent with Content-Type: application/json.",
            code="invalid_json",
        )
    # A union reports each of its branches: the deepest path belongs to the branch that fits best, and all that is
    # said there tells what the field accepts.
    params = [
        _param(problem["loc"], error.body, is_missing=problem["type"] == "missing") for problem in problems
    ]
    param = max(params, key=_depth)
    first = problems[params.index(param)]
    messages = dict.fromkeys(
        problem["msg"] for problem, path in zip(problems, params, strict=True) if path == param
    )
    is_missing = first["type"] == "missing"
    return ApiError(
        HTTPStatus.BAD_REQUEST,
        f"{param}: {'; or '.join(messages)}.",
        param=param,
        code="missing_required_parameter" if is_missing else "invalid_value",
    )


def _depth(param: str) -> int:
    return param.count(".") + param.count("[")


def _param(loc: Sequence[int | str], body: Any, *, is_missing: bool) -> str:
    """The path of a field in the body, as `messages[0].content`. Names that pydantic adds for the branches of a
    union are in `loc` but not in the body, and are left out; the last one of a missing field is its own."""
    path, value = "", body
    for position, key in enumerate(loc[1:], start=2):
        if isinstance(key, int) and isinstance(value, list):
            path += f"[{key}]"
            value = value[key] if key < len(value) else None
        elif isinstance(value, dict) and (key in value or (is_missing and position == len(loc))):
            path += f".{key}" if path else str(key)
            value = value.get(key)
    return path


async def _answer(_: Request, error: Exception) -> JSONResponse:
    return describe(error).response()


def install_error_handlers(app: FastAPI) -> None:
    """Makes `app` answer every exception in OpenAI's shape."""
    for kind in (RequestError, OverloadedError, EngineStoppedError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _answer)
    app.add_exception_handler(Exception, _answer)
