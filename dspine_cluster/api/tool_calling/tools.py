"""The tools of a chat request: what can be promised about them, and how the chat template gets them."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from dspine_cluster.api.chat_schema import AllowedToolsChoice, NamedToolChoice, Tool
from dspine_cluster.api.schema import ChatCompletionRequest
from dspine_cluster.api.tool_calling.parameter_types import ParameterTypes
from dspine_cluster.errors import RequestError


def with_allowed_tools(body: ChatCompletionRequest) -> ChatCompletionRequest:
    """`body` as if it had the tools alone that its `tool_choice` allows, where it says so.

    Raises:
        RequestError: one of them is not there.
    """
    if not isinstance(body.tool_choice, AllowedToolsChoice):
        return body
    allowed = body.tool_choice.allowed_tools
    tools = {tool.function.name: tool for tool in body.tools or []}
    names = dict.fromkeys(choice.function.name for choice in allowed.tools)
    for name in names:
        _check_name(name, tools)
    offered = [tool for name, tool in tools.items() if name in names]
    return body.model_copy(update={"tools": offered, "tool_choice": allowed.mode})


def offered_tools(body: ChatCompletionRequest) -> list[Tool]:
    """The tools that the model is told of. With `tool_choice` 'none' there are none: then it cannot call any.

    Raises:
        RequestError: a call is forced of a tool that is not there.
    """
    tools = body.tools or []
    if isinstance(body.tool_choice, NamedToolChoice):
        _check_name(body.tool_choice.function.name, [tool.function.name for tool in tools])
    if body.tool_choice == "required" and not tools:
        raise RequestError("tool_choice: 'required' needs tools.", param="tool_choice")
    return [] if body.tool_choice == "none" else tools


def _check_name(name: str, names: Container[str]) -> None:
    if name not in names:
        raise RequestError(f"tool_choice: there is no tool named {name[:200]!r}.", param="tool_choice")


def template_tools(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """The tools as chat templates expect them."""
    fields = {"name", "description", "parameters"}
    return [
        {"type": tool.type, "function": tool.function.model_dump(include=fields, exclude_none=True)}
        for tool in tools
    ]


def parameter_types(tools: Sequence[Tool]) -> ParameterTypes:
    """The types of all parameters, by the name of the function."""
    return ParameterTypes({tool.function.name: tool.function.parameters or {} for tool in tools})
