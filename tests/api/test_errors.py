from __future__ import annotations

import json

import pytest

from dspine_cluster.api.errors import describe
from dspine_cluster.errors import CheckpointError
from tests.api.conftest import LIMITS, Api

USER = [{"role": "user", "content": "Hello"}]


def chat(**fields: object) -> dict[str, object]:
    return {"messages": USER, "max_tokens": 3, **fields}


def assert_openai_shape(body: object) -> dict[str, object]:
    assert isinstance(body, dict)
    assert body.keys() == {"error"}
    error = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    return dict(error)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "Hello"}, "messages"),
        ({"messages": ["Hello"]}, "messages[0]"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].function"),
        ({"model": 3}, "model"),
        ({"temperature": "0.5"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": 1e-40}, "repetition_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10**30}, "messages"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"min_tokens": 4}, "min_tokens"),
        ({"n": 0}, "n"),
        ({"n": 9}, "n"),
        ({"n": True}, "n"),
        ({"seed": 2**63}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": [3]}, "stop[0]"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": "x" * 600}, "stop"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"stop_token_ids": [9999]}, "stop_token_ids"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"9999": 1}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logit_bias": {str(number): "x" for number in range(1025)}}, "logit_bias"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs.chat_template"),
        ({"chat_template_kwargs": {"enable_thinking": "no"}}, "chat_template_kwargs.enable_thinking"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
    ],
)
def test_a_wrong_value_is_named(api: Api, fields: dict[str, object], param: str) -> None:
    answer = api.http.post(
        "/v1/chat/completions",
        content=json.dumps(chat(**fields)),
        headers={"content-type": "application/json"},
    )
    error = assert_openai_shape(answer.json())
    assert (answer.status_code, error["param"]) == (400, param)
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (None, "prompt"),
        (5, "prompt"),
        ([], "prompt"),
        ("", "prompt"),
        ([[]], "prompt"),
        ([1, "x"], "prompt[0]"),
        ([-1], "prompt[0]"),
        ([9999], "prompt"),
        ([1.5], "prompt[0]"),
        ([True], "prompt[0]"),
        (["x"] * 9, "prompt"),
        ("x" * 512, "prompt"),
    ],
)
def test_a_wrong_prompt_is_named(api: Api, prompt: object, param: str) -> None:
    answer = api.http.post("/v1/completions", json={"prompt": prompt})
    error = assert_openai_shape(answer.json())
    assert (answer.status_code, error["param"]) == (400, param)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"\xff\xfe",
        b'{"messages": [}',
        b"[" * 20_000,
        b'{"max_tokens": ' + b"9" * 5000 + b"}",
        b"{}",
        b'{"messages": [{"role": "user", "content": "x"}], "prompt": "x", "temperature": NaN}',
        b'{"messages": [{"role": "user", "content": "x"}], "prompt": "x", "temperature": 1e999}',
        rb'{"messages": [{"role": "user", "content": "\ud800"}], "prompt": "\ud800"}',
        rb'{"messages": [{"role": "user", "content": "x"}], "prompt": "x", "stop": ["\udfff"]}',
        rb'{"messages": [{"role": "user", "content": "x"}], "prompt": "x", "\udfff": 1}',
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_malformed_body_is_a_bad_request(api: Api, path: str, body: bytes) -> None:
    answer = api.http.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert_openai_shape(answer.json())


def test_a_body_that_is_not_sent_as_json_says_how_to_send_it(api: Api) -> None:
    answer = api.http.post(
        "/v1/completions", content=b'{"prompt": "x"}', headers={"content-type": "text/plain"}
    )
    assert answer.status_code == 400
    assert "application/json" in str(assert_openai_shape(answer.json())["message"])


def test_a_missing_field_has_its_own_code(api: Api) -> None:
    error = assert_openai_shape(api.http.post("/v1/chat/completions", json={"model": "fake"}).json())
    assert (error["param"], error["code"]) == ("messages", "missing_required_parameter")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("GET", "/nowhere", 404),
        ("GET", "/v1/models/other", 404),
    ],
)
def test_wrong_methods_and_paths_have_openai_shape(api: Api, method: str, path: str, status: int) -> None:
    answer = api.http.request(method, path)
    assert answer.status_code == status
    assert_openai_shape(answer.json())


def test_a_wrong_method_tells_which_are_allowed(api: Api) -> None:
    assert api.http.get("/v1/completions").headers["allow"] == "POST"


def test_a_body_beyond_the_limit_is_refused(api: Api) -> None:
    answer = api.http.post("/v1/completions", json={"prompt": "x" * LIMITS.max_body_bytes})
    assert answer.status_code == 413
    assert_openai_shape(answer.json())


def test_an_unforeseen_error_shows_nothing_of_itself() -> None:
    error = describe(CheckpointError("/private/model is broken"))
    assert error.status == 500
    assert "/private" not in error.message


def test_a_long_list_of_wrong_items_is_one_short_answer(api: Api) -> None:
    answer = api.http.post("/v1/completions", json={"prompt": [1.5] * 20_000})
    assert answer.status_code == 400
    assert len(answer.content) < 2000


def test_long_messages_are_cut(api: Api) -> None:
    answer = api.http.post("/v1/chat/completions", json=chat(**{"model": "m" * 50_000}))
    assert len(answer.content) < 2000
