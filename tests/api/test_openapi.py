"""The published OpenAPI document: what it describes, and that requests made from it are answered as it says."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from dspine_cluster.api.prompting.chat_template import ChatTokenizer
from dspine_cluster.api.routes import create_app
from tests.api.conftest import LIMITS
from tests.api.fakes import FakeGenerator, byte_tokenizer

PATHS = {
    "/v1/models": "get",
    "/v1/models/{model}": "get",
    "/v1/chat/completions": "post",
    "/v1/completions": "post",
    "/v1/responses": "post",
    "/tokenize": "post",
    "/detokenize": "post",
    "/health": "get",
    "/ready": "get",
}


def make_app() -> FastAPI:
    return create_app(FakeGenerator(), ChatTokenizer(byte_tokenizer()), "fake", LIMITS)


APP = make_app()
DOCUMENT: dict[str, Any] = APP.openapi()
schema = schemathesis.openapi.from_asgi("/openapi.json", APP)


def test_every_endpoint_is_described() -> None:
    assert {path: next(iter(methods)) for path, methods in DOCUMENT["paths"].items()} == PATHS


@pytest.mark.parametrize("path", PATHS)
def test_every_failure_is_described_in_openai_s_shape(path: str) -> None:
    responses = DOCUMENT["paths"][path][PATHS[path]]["responses"]
    assert set(responses) == {"200", "4XX", "5XX"}
    for failure in ("4XX", "5XX"):
        body = responses[failure]["content"]["application/json"]["schema"]
        assert body == {"$ref": "#/components/schemas/ErrorBody"}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
def test_answers_that_may_be_streamed_are_described_both_ways(path: str) -> None:
    content = DOCUMENT["paths"][path]["post"]["responses"]["200"]["content"]
    assert set(content) == {"application/json", "text/event-stream"}


@schema.parametrize()
@settings(max_examples=15, suppress_health_check=list(HealthCheck), derandomize=True)
def test_requests_made_from_the_document_are_answered_as_it_says(case: schemathesis.Case[Any]) -> None:
    case.call_and_validate(
        checks=[
            not_a_server_error,
            status_code_conformance,
            content_type_conformance,
            response_schema_conformance,
        ]
    )
