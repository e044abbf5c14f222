"""The messages of a request as chat templates expect them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic_core import from_json

from dspine_cluster.api.chat_schema import ChatMessage, MessageToolCall
from dspine_cluster.api.json_size import MAX_CONTAINERS, has_too_many_containers
from dspine_cluster.errors import RequestError


def template_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Text parts joined, `developer` under its older name `system`, arguments of calls as objects.

    Raises:
        RequestError: a message is not one that this server can take.
    """
    calls = [call.function.arguments for message in messages for call in message.tool_calls or ()]
    if has_too_many_containers("".join(calls).encode()):
        raise RequestError(
            f"messages: the arguments of calls have more than {MAX_CONTAINERS} objects and lists.",
            param="messages",
        )
    return [_template_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _template_message(message: ChatMessage, param: str) -> dict[str, Any]:
    if message.role == "function":
        raise RequestError(
            f"{param}.role: messages of role 'function' are not supported by this server; use 'tool'.",
            param=f"{param}.role",
            code="unsupported_parameter",
        )
    role = "system" if message.role == "developer" else message.role
    plain: dict[str, Any] = {"role": role, "content": _content(message, param)}
    for key in ("name", "reasoning_content", "tool_call_id"):
        if (value := getattr(message, key)) is not None:
            plain[key] = value
    if message.tool_calls:
        if role != "assistant":
            raise RequestError(
                f"{param}.tool_calls: only messages of role 'assistant' have calls.",
                param=f"{param}.tool_calls",
            )
        plain["tool_calls"] = [
            _call(call, f"{param}.tool_calls[{index}]") for index, call in enumerate(message.tool_calls)
        ]
    return plain


def call_arguments(text: str, param: str) -> dict[str, Any]:
    """The arguments of a call; some models write nothing where there are none.

    Raises:
        RequestError: `text`, the client's `param`, is something else.
    """
    try:
        arguments = from_json(text or "{}", allow_inf_nan=False)
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise RequestError(f"{param}: must be the text of a JSON object.", param=param)
    return arguments


def _call(call: MessageToolCall, param: str) -> dict[str, Any]:
    arguments = call_arguments(call.function.arguments, f"{param}.function.arguments")
    plain = {"type": call.type, "function": {"name": call.function.name, "arguments": arguments}}
    return plain if call.id is None else {"id": call.id, **plain}


def _content(message: ChatMessage, param: str) -> str:
    if message.content is None:
        if message.tool_calls:
            return ""
        raise RequestError(f"{param}.content is missing.", param=f"{param}.content")
    if isinstance(message.content, str):
        return message.content
    texts = []
    for index, part in enumerate(message.content):
        if part.type != "text" or part.text is None:
            raise RequestError(
                f"{param}.content[{index}]: only parts of type 'text' with a text are supported.",
                param=f"{param}.content[{index}]",
                code="unsupported_content",
            )
        texts.append(part.text)
    return "".join(texts)
