"""The tools of a chat request: what can be promised about them, and how the chat template gets them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dspine_cluster.api.parameter_types import ParameterTypes
from dspine_cluster.api.schema import ChatCompletionRequest, Tool
from dspine_cluster.errors import RequestError


def offered_tools(body: ChatCompletionRequest) -> list[Tool]:
    """The tools that the model is told of. With `tool_choice` 'none' there are none: then it cannot call any.

    Raises:
        RequestError: what the request asks for cannot be promised without grammar masks.
    """
    if body.tool_choice not in (None, "auto", "none"):
        raise _needs_masks("tool_choice", "a forced call", "use 'auto' or 'none'")
    tools = body.tools or []
    for index, tool in enumerate(tools):
        if tool.function.strict:
            raise _needs_masks(f"tools[{index}].function.strict", "arguments after a schema", "leave it out")
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


def _needs_masks(param: str, promise: str, remedy: str) -> RequestError:
    return RequestError(
        f"{param}: {promise} cannot be promised by this server, which does not mask tokens by a grammar; {remedy}.",
        param=param,
        code="unsupported_parameter",
    )
