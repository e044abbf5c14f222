"""The tools of a chat request: what can be promised about them, and how the chat template gets them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dspine_cluster.api.parameter_types import ParameterTypes
from dspine_cluster.api.schema import ChatCompletionRequest, NamedToolChoice, Tool
from dspine_cluster.errors import RequestError


def offered_tools(body: ChatCompletionRequest) -> list[Tool]:
    """The tools that the model is told of. With `tool_choice` 'none' there are none: then it cannot call any.

    Raises:
        RequestError: a call is forced of a tool that is not there.
    """
    tools = body.tools or []
    if isinstance(body.tool_choice, NamedToolChoice):
        name = body.tool_choice.function.name
        if all(tool.function.name != name for tool in tools):
            raise RequestError(f"tool_choice: there is no tool named {name!r}.", param="tool_choice")
    if body.tool_choice == "required" and not tools:
        raise RequestError("tool_choice: 'required' needs tools.", param="tool_choice")
    return [] if body.tool_choice == "none" else tools


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
