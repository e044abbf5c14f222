"""From `/v1/responses` to the chat that says the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from dspine_cluster.api.errors import describe
from dspine_cluster.api.prompting.messages import call_arguments
from dspine_cluster.api.responses_api.schema import (
    LOGPROBS,
    AllowedTools,
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    InputMessage,
    NamedTool,
    Part,
    ReasoningItem,
    ResponseRequest,
    ResponseTool,
)
from dspine_cluster.api.schema import ChatCompletionRequest, SamplingOptions
from dspine_cluster.api.tool_calling.tools import with_allowed_tools
from dspine_cluster.api.unsupported import check_extra_fields
from dspine_cluster.errors import RequestError

_TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal", "summary_text", "reasoning_text"})
_UNSUPPORTED = {
    "background": "answers come while the client waits",
    "context_management": "what does not fit is refused",
    "conversation": "nothing is stored; send earlier items in input",
    "moderation": "nothing is moderated",
    "previous_response_id": "nothing is stored; send earlier items in input",
    "prompt": "nothing is stored; send instructions and input",
}
_MOVED = {
    "logprobs": "include",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "verbosity": "text.verbosity",
}
"""Fields of chats, and what they are called here."""
_PARAMS = (
    ("messages", "input"),
    ("max_completion_tokens", "max_output_tokens"),
    ("reasoning_effort", "reasoning.effort"),
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
)


def chat_of(body: ResponseRequest) -> ChatCompletionRequest:
    """The chat whose answer is the answer to `body`.

    Raises:
        RequestError: `body` asks for what this server does not do, or is no chat.
    """
    extra = body.model_extra or {}
    for name, reason in _UNSUPPORTED.items():
        if extra.get(name):
            raise _unsupported(name, f"{reason}.")
    for name, other in _MOVED.items():
        if extra.get(name) is not None:
            raise _unsupported(name, f"/v1/responses has {other} instead.")
    if extra.get("n") not in (None, 1):
        raise _unsupported("n", "a response is one answer.")
    if body.top_logprobs and not body.wants_logprobs:
        raise RequestError(f"top_logprobs: needs include to have {LOGPROBS!r}.", param="top_logprobs")
    check_extra_fields(body)
    fields: dict[str, Any] = body.model_dump(
        include=set(SamplingOptions.model_fields) | {"parallel_tool_calls"}, exclude_none=True
    )
    fields |= {
        "messages": list(_messages(body)),
        "tools": [_tool(tool) for tool in body.tools or []],
        "tool_choice": _tool_choice(body),
        "max_completion_tokens": body.max_output_tokens,
        "reasoning_effort": body.reasoning.effort if body.reasoning else None,
        "response_format": _response_format(body),
        "structured_outputs": body.structured_outputs,
        "chat_template_kwargs": body.chat_template_kwargs,
        "logprobs": body.wants_logprobs,
        "top_logprobs": body.top_logprobs if body.wants_logprobs else None,
    }
    try:
        chat = ChatCompletionRequest.model_validate(fields)
    except ValidationError as error:
        problems = [{**problem, "loc": ("body", *problem["loc"])} for problem in error.errors()]
        told = describe(RequestValidationError(problems, body=fields))
        raise renamed(RequestError(told.message, param=told.param, code=told.code)) from error
    return with_allowed_tools(chat)


def renamed(error: RequestError) -> RequestError:
    """What is wrong with a chat, as clients of `/v1/responses` know the field."""
    message, param = str(error), response_param(error.param)
    if error.param is not None and message.startswith(error.param):
        message = f"{param}{message.removeprefix(error.param)}"
    return RequestError(message, param=param, code=error.code)


def response_param(param: str | None) -> str | None:
    """The name here of what chats call `param`."""
    if param is None:
        return None
    for chat_name, name in _PARAMS:
        if param == chat_name:
            return name
        if param.startswith((f"{chat_name}.", f"{chat_name}[")):
            # Items and messages do not number alike; a schema's place is the same.
            return name if chat_name == "messages" else name + param.removeprefix(chat_name)
    return param.replace("].function.", "].") if param.startswith("tools[") else param


def _messages(body: ResponseRequest) -> Iterator[dict[str, Any]]:
    """Items as messages: one of the assistant for its reasoning, text and calls that stand side by side, and the
    instructions with the system's message, if the input begins with one: templates want one at most."""
    items = [InputMessage(role="user", content=body.input)] if isinstance(body.input, str) else body.input
    if body.instructions is not None:
        system = body.instructions
        if isinstance(items[0], InputMessage) and items[0].role in ("system", "developer"):
            system = f"{system}\n\n{_text(items[0].content, 'input[0].content')}"
            items = items[1:]
        yield {"role": "system", "content": system}
    answer: dict[str, Any] = {}
    for index, item in enumerate(items):
        param = f"input[{index}]"
        if _is_assistant(item):
            if answer.get("content") and not isinstance(item, FunctionCall):
                yield answer
                answer = {}
            _add(answer, item, param)
            continue
        if answer:
            yield answer
            answer = {}
        if isinstance(item, FunctionCallOutput):
            yield {
                "role": "tool",
                "tool_call_id": item.call_id,
                "content": _text(item.output, f"{param}.output"),
            }
        elif isinstance(item, InputMessage):
            yield {"role": item.role, "content": _text(item.content, f"{param}.content")}
    if answer:
        yield answer


def _is_assistant(item: InputItem) -> bool:
    return isinstance(item, FunctionCall | ReasoningItem) or (
        isinstance(item, InputMessage) and item.role == "assistant"
    )


def _add(answer: dict[str, Any], item: InputItem, param: str) -> None:
    """Add an item of the assistant's to its message."""
    answer.setdefault("role", "assistant")
    answer.setdefault("content", "")
    if isinstance(item, InputMessage):
        answer["content"] += _text(item.content, f"{param}.content")
    elif isinstance(item, ReasoningItem):
        reasoning = _text(item.content or item.summary or "", f"{param}.content")
        answer["reasoning_content"] = answer.get("reasoning_content", "") + reasoning
    elif isinstance(item, FunctionCall):
        call_arguments(item.arguments, f"{param}.arguments")
        function = {"name": item.name, "arguments": item.arguments}
        answer.setdefault("tool_calls", []).append(
            {"id": item.call_id, "type": "function", "function": function}
        )


def _text(content: str | Sequence[Part], param: str) -> str:
    if isinstance(content, str):
        return content
    for index, part in enumerate(content):
        if part.type not in _TEXT_PARTS:
            raise RequestError(
                f"{param}[{index}]: parts of type {part.type[:50]!r} are not supported by this server, only text.",
                param=f"{param}[{index}]",
                code="unsupported_content",
            )
        if part.text is None and part.refusal is None:
            raise RequestError(
                f"{param}[{index}].text is missing.",
                param=f"{param}[{index}].text",
                code="missing_required_parameter",
            )
    return "".join(part.text or part.refusal or "" for part in content)


def _tool(tool: ResponseTool) -> dict[str, Any]:
    return {"type": "function", "function": tool.model_dump(exclude={"type"}, exclude_none=True)}


def _tool_choice(body: ResponseRequest) -> Any:
    choice = body.tool_choice
    if choice is None or isinstance(choice, str):
        return choice
    if isinstance(choice, AllowedTools):
        allowed = {"mode": choice.mode, "tools": [_named(tool) for tool in choice.tools]}
        return {"type": "allowed_tools", "allowed_tools": allowed}
    return _named(choice)


def _named(choice: NamedTool) -> dict[str, Any]:
    return {"type": "function", "function": {"name": choice.name}}


def _response_format(body: ResponseRequest) -> dict[str, Any] | None:
    if body.text is None or body.text.format is None or body.text.format.type == "text":
        return None
    fields = body.text.format.model_dump(exclude_none=True, by_alias=True)
    kind = fields.pop("type")
    if kind == "json_schema" and "schema" not in fields:
        param = "text.format.schema"
        raise RequestError(f"{param} is missing.", param=param, code="missing_required_parameter")
    return {"type": kind, kind: fields} if kind == "json_schema" else {"type": kind}


def _unsupported(param: str, reason: str) -> RequestError:
    return RequestError(
        f"{param} is not supported by this server: {reason}", param=param, code="unsupported_parameter"
    )
