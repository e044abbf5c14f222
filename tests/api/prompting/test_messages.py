from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from dspine_cluster.api.chat_schema import ChatMessage
from dspine_cluster.api.prompting.messages import template_messages
from dspine_cluster.errors import RequestError


def messages(*bodies: dict[str, Any]) -> list[dict[str, Any]]:
    return template_messages(TypeAdapter(list[ChatMessage]).validate_python(list(bodies)))


def called(arguments: str, **fields: object) -> dict[str, Any]:
    return {
        "role": "assistant",
        "tool_calls": [{"function": {"name": "f", "arguments": arguments}}],
        **fields,
    }


def test_arguments_of_calls_become_objects() -> None:
    [message] = messages(called('{"a": 1}', content=None))
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    assert message == {"role": "assistant", "content": "", "tool_calls": [call]}


def test_a_call_of_nothing_has_no_arguments() -> None:
    [message] = messages(called(""))
    assert message["tool_calls"][0]["function"]["arguments"] == {}


def test_what_templates_may_use_is_kept() -> None:
    message = {"role": "tool", "content": "x", "name": "f", "tool_call_id": "1"}
    assert messages(message) == [message]
    message = {"role": "assistant", "content": "x", "reasoning_content": "why"}
    assert messages(message) == [message]


def test_arguments_that_would_take_long_to_read_are_refused() -> None:
    half = called('{"a": [' + "[]," * 20_000 + "[]]}")
    assert messages({"role": "user", "content": "x"}, half)
    with pytest.raises(RequestError, match="objects and lists"):
        messages({"role": "user", "content": "x"}, half, half)


@pytest.mark.parametrize("arguments", ["[]", "{", "NaN", '{"a": NaN}'])
def test_arguments_that_are_no_object_are_named(arguments: str) -> None:
    with pytest.raises(RequestError) as caught:
        messages({"role": "user", "content": "x"}, called(arguments))
    assert caught.value.param == "messages[1].tool_calls[0].function.arguments"


def test_only_the_assistant_calls() -> None:
    with pytest.raises(RequestError) as caught:
        messages(called("{}", role="user"))
    assert caught.value.param == "messages[0].tool_calls"


def test_a_message_without_content_and_calls_is_refused() -> None:
    with pytest.raises(RequestError) as caught:
        messages({"role": "assistant", "tool_calls": []})
    assert caught.value.param == "messages[0].content"
