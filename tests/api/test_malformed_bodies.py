"""Bodies that are wrong in more than two hundred ways: each is refused in OpenAI's shape, and nothing is generated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from dspine_cluster.api.bodies import ErrorBody
from dspine_cluster.api.responses_api.schema import ResponseRequest
from dspine_cluster.api.schema import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from tests.api.conftest import Api

MESSAGES = [{"role": "user", "content": "Hello"}]
ENDPOINTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "/v1/chat/completions": (ChatCompletionRequest, {"messages": MESSAGES, "max_tokens": 4}),
    "/v1/completions": (CompletionRequest, {"prompt": "x", "max_tokens": 4}),
    "/v1/responses": (ResponseRequest, {"input": "x", "max_output_tokens": 16}),
    "/tokenize": (TokenizeRequest, {"prompt": "x"}),
    "/detokenize": (DetokenizeRequest, {"tokens": [1]}),
}
WRONG_EVERYWHERE: tuple[Any, ...] = ([[["x"]]], -3.5)
TAKE_ANYTHING = {"metadata"}
"""Fields that are kept or passed over whatever they hold."""
RAW = {
    "empty": b"",
    "no JSON": b"hello",
    "cut off": b'{"prompt": "x"',
    "a list": b"[1]",
    "a number": b"1",
    "null": b"null",
    "text": b'"x"',
    "two values": b"{} {}",
    "single quotes": b"{'prompt': 'x'}",
    "a trailing comma": b'{"prompt": "x",}',
    "a comment": b'{"prompt": "x" /* c */}',
    "NaN": b'{"prompt": "x", "temperature": NaN}',
    "infinity": b'{"prompt": "x", "temperature": Infinity}',
    "a huge number": b'{"prompt": 1e999}',
    "a huge integer": b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}",
    "half a surrogate pair": b'{"prompt": "\\ud800"}',
    "no UTF-8": b'{"prompt": "\xff\xfe"}',
    "UTF-16": '{"prompt": "x"}'.encode("utf-16"),
    "a control character": b'{"prompt": "a\x01b"}',
    "deep lists": b'{"prompt": ' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    "deep objects": b'{"prompt": ' + b'{"a":' * 20_000 + b"1" + b"}" * 20_000 + b"}",
}


def wrong_fields() -> Iterator[tuple[str, str, Any]]:
    for path, (model, _) in ENDPOINTS.items():
        for field in model.model_fields:
            if field not in TAKE_ANYTHING:
                yield from ((path, field, value) for value in WRONG_EVERYWHERE)


def check_refused(answer: httpx.Response) -> ErrorBody:
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = ErrorBody.model_validate_json(answer.content, extra="forbid")
    assert body.error.type == "invalid_request_error"
    assert body.error.message
    return body


def test_there_are_more_than_two_hundred() -> None:
    assert len(list(wrong_fields())) + len(RAW) * len(ENDPOINTS) > 200


@pytest.mark.parametrize("path", ENDPOINTS)
def test_the_bodies_are_right_before_they_are_made_wrong(api: Api, path: str) -> None:
    assert api.http.post(path, json=ENDPOINTS[path][1]).status_code == 200


@pytest.mark.parametrize(("path", "field", "value"), list(wrong_fields()), ids=str)
def test_a_wrong_field_is_named(api: Api, path: str, field: str, value: Any) -> None:
    seen = len(api.generator.requests)
    error = check_refused(api.http.post(path, json=ENDPOINTS[path][1] | {field: value})).error
    assert (error.param or "").partition(".")[0].partition("[")[0] == field
    assert len(api.generator.requests) == seen


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize("name", RAW)
def test_a_body_that_is_no_request_is_refused(api: Api, path: str, name: str) -> None:
    body = RAW[name].replace(b"prompt", next(iter(ENDPOINTS[path][1])).encode())
    headers = {"Content-Type": "application/json"}
    check_refused(api.http.post(path, content=body, headers=headers))


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
def test_another_content_type_is_refused(api: Api, path: str, content_type: str) -> None:
    body = json.dumps(ENDPOINTS[path][1])
    check_refused(api.http.post(path, content=body, headers={"Content-Type": content_type}))


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v1/completions"), ("POST", "/v1/models"), ("GET", "/no")]
)
def test_another_method_or_path_is_refused(api: Api, method: str, path: str) -> None:
    check_refused(api.http.request(method, path))
