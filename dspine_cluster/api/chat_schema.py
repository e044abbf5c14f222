"""Messages, tools, and what a client may tell the chat template, in OpenAI's shape."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from dspine_cluster.api.request_fields import FunctionName, RequestModel, type_tag


class TextPart(RequestModel):
    """One part of a message's content. Only text is served; `type` is checked where the prompt is made."""

    type: str
    text: str | None = None


class CalledFunction(RequestModel):
    name: FunctionName
    arguments: str
    """JSON text."""


class MessageToolCall(RequestModel):
    """A call that the assistant made earlier."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(RequestModel):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: Annotated[list[MessageToolCall], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = None


class ToolFunction(RequestModel):
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON schema of an object."""
    strict: bool | None = None


class Tool(RequestModel):
    type: Literal["function"]
    function: ToolFunction


class FunctionChoice(RequestModel):
    name: str


class NamedToolChoice(RequestModel):
    type: Literal["function"]
    function: FunctionChoice


class AllowedTools(RequestModel):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedToolChoice], Field(fail_fast=True)]


class AllowedToolsChoice(RequestModel):
    """Some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ToolObject = Annotated[
    Annotated[NamedToolChoice, Tag("type=function")]
    | Annotated[AllowedToolsChoice, Tag("type=allowed_tools")],
    Discriminator(
        type_tag,
        custom_error_type="unknown_choice",
        custom_error_message="Input should be an object of type 'function' or 'allowed_tools'",
    ),
]


class ChatTemplateKwargs(RequestModel):
    """What a client may tell the chat template."""

    enable_thinking: bool | None = None
    preserve_thinking: bool | None = None
    """Keep the reasoning of all earlier turns."""

    @property
    def known(self) -> dict[str, Any]:
        """The variables that are set and that this server passes on."""
        return self.model_dump(include=set(type(self).model_fields), exclude_none=True)
