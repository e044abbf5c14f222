"""The bodies that clients send to `/v1/responses`: text, function tools and what became of their calls."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from dspine_cluster.api.chat_schema import ChatTemplateKwargs
from dspine_cluster.api.request_fields import FunctionName, NumTopLogprobs, RequestModel, type_tag
from dspine_cluster.api.schema import SamplingOptions, StructuredOutputs

Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
LOGPROBS = "message.output_text.logprobs"
Includable = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
]
"""All but the first have no effect: they are of tools that are not served, and reasoning comes as text."""


class Part(RequestModel):
    """One part of a message, of a tool's output or of reasoning. Only text is served; `type` is checked later."""

    type: str
    text: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


Parts = Annotated[list[Part], Field(fail_fast=True)]


class Item(RequestModel):
    """What items have of the answer that they come from; it has no effect."""

    id: str | None = None
    status: str | None = None


class InputMessage(Item):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Parts


class FunctionCall(Item):
    """A call that the assistant made earlier."""

    type: Literal["function_call"]
    call_id: str
    name: FunctionName
    arguments: str
    """JSON text."""


class FunctionCallOutput(Item):
    type: Literal["function_call_output"]
    call_id: str
    output: str | Parts


class ReasoningItem(Item):
    """What the assistant said to itself before it answered."""

    type: Literal["reasoning"]
    summary: Parts | None = None
    content: Parts | None = None


def _item_tag(item: Any) -> str:
    """Messages need not say what they are."""
    return type_tag(item, "message")


InputItem = Annotated[
    Annotated[InputMessage, Tag("type=message")]
    | Annotated[FunctionCall, Tag("type=function_call")]
    | Annotated[FunctionCallOutput, Tag("type=function_call_output")]
    | Annotated[ReasoningItem, Tag("type=reasoning")],
    Discriminator(
        _item_tag,
        custom_error_type="unknown_item",
        custom_error_message="Input should be a message or an item of type 'function_call', 'function_call_output' or "
        "'reasoning', the only ones that this server takes",
    ),
]


class ResponseTool(RequestModel):
    """A function. Tools that a server runs itself are not offered."""

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON schema of an object."""
    strict: bool | None = None


class NamedTool(RequestModel):
    type: Literal["function"]
    name: str


class AllowedTools(RequestModel):
    """Some of the tools."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(fail_fast=True)]


ToolObject = Annotated[
    Annotated[NamedTool, Tag("type=function")] | Annotated[AllowedTools, Tag("type=allowed_tools")],
    Discriminator(
        type_tag,
        custom_error_type="unknown_choice",
        custom_error_message="Input should be an object of type 'function' or 'allowed_tools'",
    ),
]


class ReasoningOptions(RequestModel):
    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    """Has no effect: reasoning comes whole."""


class TextFormat(RequestModel):
    """Checked as the `response_format` of chats."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    json_schema: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextOptions(RequestModel):
    format: TextFormat | None = None


class ResponseStats(RequestModel):
    """What an answer tells of speculative decoding, in `dspine`."""

    include_stats: bool = False
    """Rounds, acceptance length and accepted proposals by position, when it has ended."""


class ResponseRequest(SamplingOptions):
    input: str | Annotated[list[InputItem], Field(fail_fast=True, min_length=1)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    tools: Annotated[list[ResponseTool], Field(fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolObject | None = None
    parallel_tool_calls: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    metadata: Metadata | None = None
    """Comes back with the answer."""
    store: bool | None = None
    """Has no effect: nothing is stored, and the answer says so."""
    truncation: Literal["auto", "disabled"] | None = None
    """Has no effect: what does not fit is refused."""
    include: Annotated[list[Includable], Field(fail_fast=True)] | None = None
    top_logprobs: NumTopLogprobs | None = None
    chat_template_kwargs: ChatTemplateKwargs | None = None
    dspine: ResponseStats | None = None

    @property
    def wants_logprobs(self) -> bool:
        """Whether texts are to have the log-probabilities of their tokens."""
        return LOGPROBS in (self.include or [])
