from __future__ import annotations

import pytest

from dspine_cluster.api.schema import ChatCompletionRequest
from dspine_cluster.api.tool_calling.tools import (
    offered_tools,
    parameter_types,
    template_tools,
    with_allowed_tools,
)
from dspine_cluster.errors import RequestError


def body(tool: dict[str, object], **fields: object) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate(
        {
            "messages": [{"role": "user", "content": "x"}],
            "tools": [{"type": "function", "function": {"name": "f", **tool}}],
            **fields,
        }
    )


def test_the_template_gets_what_it_knows_and_nothing_else() -> None:
    tools = offered_tools(body({"parameters": {"type": "object"}, "strict": False, "unknown": 1}))
    assert template_tools(tools) == [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    ]


@pytest.mark.parametrize(("choice", "num_tools"), [(None, 1), ("auto", 1), ("none", 0)])
def test_where_none_may_be_called_none_is_offered(choice: str | None, num_tools: int) -> None:
    assert len(offered_tools(body({}, tool_choice=choice))) == num_tools


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "g"}}}, "no tool named 'g'"),
        ({"tool_choice": "required", "tools": None}, "needs tools"),
    ],
)
def test_a_call_is_forced_only_of_what_is_there(fields: dict[str, object], cause: str) -> None:
    with pytest.raises(RequestError, match=cause) as caught:
        offered_tools(body({}, **fields))
    assert caught.value.param == "tool_choice"


def test_of_allowed_tools_each_must_be_there() -> None:
    names = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": names}}
    with pytest.raises(RequestError, match="no tool named 'g'"):
        with_allowed_tools(body({}, tool_choice=choice))


def test_parameters_have_their_schema_s_types() -> None:
    tools = offered_tools(body({"parameters": {"properties": {"x": {"type": "integer"}}}}))
    assert parameter_types(tools).of("f", "x") == {"integer"}
