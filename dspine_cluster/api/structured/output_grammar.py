"""What a request asks of its answer's form, as one grammar over all of its output."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dspine_cluster.api.answering.reasoning import Thinking
from dspine_cluster.api.chat_schema import NamedToolChoice, Tool
from dspine_cluster.api.schema import (
    ChatCompletionRequest,
    CompletionRequest,
    GenerationOptions,
    StructuredOutputs,
)
from dspine_cluster.api.structured.json_schemas import is_xml_name, schema_grammar, xml_parameters_grammar
from dspine_cluster.api.structured.patterns import check_pattern, check_repeats
from dspine_cluster.api.structured.schema_parts import CHOICES, alternatives
from dspine_cluster.api.tool_calling.tool_calls import CallForm
from dspine_cluster.errors import RequestError
from dspine_cluster.types import OutputGrammar

_MAX_CHOICES = 1000
_NO_PARAMETERS = {"type": "object", "additionalProperties": False}
_LINE_ENDS = {"type": "regex", "pattern": r"\n{0,2}"}
Format = dict[str, Any]
"""Of xgrammar's structural tags."""


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What the model does whatever is asked of it."""

    thinking: Thinking
    """How the prompt leaves the reasoning; the form begins to hold where that ends."""
    may_think: bool
    """Whether the model knows of reasoning at all."""
    call_form: CallForm


async def chat_grammar(
    body: ChatCompletionRequest, tools: Sequence[Tool], form: AnswerForm
) -> OutputGrammar | None:
    """The grammar of a chat answer that may call `tools`; None where anything goes. Made beside the event loop.

    Raises:
        RequestError: what is asked for cannot be promised.
    """
    if not (_must_call(body) or _asks_for_content(body) or any(tool.function.strict for tool in tools)):
        return None
    return await asyncio.to_thread(_chat_grammar, body, tools, form)


async def text_grammar(body: CompletionRequest) -> OutputGrammar | None:
    """The grammar of a text completion, as for chats."""
    return await asyncio.to_thread(_text_grammar, body) if _asks_for_content(body) else None


def _must_call(body: ChatCompletionRequest) -> bool:
    return body.tool_choice == "required" or isinstance(body.tool_choice, NamedToolChoice)


def _asks_for_content(body: GenerationOptions) -> bool:
    return body.response_format is not None or body.structured_outputs is not None


def _chat_grammar(
    body: ChatCompletionRequest, tools: Sequence[Tool], form: AnswerForm
) -> OutputGrammar | None:
    content = _content(body)
    name = body.tool_choice.function.name if isinstance(body.tool_choice, NamedToolChoice) else None
    is_strict = any(tool.function.strict for tool in tools)
    if not (_must_call(body) or content or is_strict):
        return None
    names = [tool.function.name for tool in tools]
    if double := next((name for name in names if names.count(name) > 1), None):
        raise RequestError(
            f"tools: several are named {double[:50]!r}; calls of them are alike.", param="tools"
        )
    calls = [
        _call(tool, f"tools[{index}].function", form.call_form)
        for index, tool in enumerate(tools)
        if name in (None, tool.function.name)
    ]
    series: Format = {
        "type": "tags_with_separator",
        "tags": calls,
        "separator": "\n",
        "at_least_one": True,
        "stop_after_first": body.parallel_tool_calls is False or name is not None,
    }
    if _must_call(body):
        answer, param = series, "tool_choice"
    elif content is None:
        answer, param = {"type": "triggered_tags", "triggers": ["<tool_call>"], "tags": calls}, "tools"
    else:
        answer, param = content
        if calls:
            answer = {"type": "or", "elements": [answer, series]}
    return _grammar({"type": "sequence", "elements": [*_reasoning(form), answer]}, param)


def _text_grammar(body: CompletionRequest) -> OutputGrammar | None:
    content = _content(body)
    return None if content is None else _grammar(*content)


def _grammar(answer: Format, param: str) -> OutputGrammar:
    return OutputGrammar(json.dumps({"type": "structural_tag", "format": answer}), param)


def _reasoning(form: AnswerForm) -> list[Format]:
    """What may stand before the answer: reasoning, as the chat template has it."""
    begin = "" if form.thinking is Thinking.OPEN else "<think>"
    reasoning = {"type": "tag", "begin": begin, "content": {"type": "any_text"}, "end": "</think>"}
    if form.thinking is Thinking.OPEN:
        return [reasoning, _LINE_ENDS]
    if form.thinking is Thinking.CLOSED or not form.may_think:
        return []
    return [{"type": "optional", "content": {"type": "sequence", "elements": [reasoning, _LINE_ENDS]}}]


def _call(tool: Tool, param: str, form: CallForm) -> Format:
    """One call as the chat template teaches it."""
    name, parameters = tool.function.name, _of_object(tool, f"{param}.parameters")
    if form is CallForm.JSON:
        begin = f'<tool_call>\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": '
        grammar = schema_grammar(parameters, f"{param}.parameters")
        content: Format = {"type": "grammar", "grammar": grammar}
        return {"type": "tag", "begin": begin, "content": content, "end": "}\n</tool_call>"}
    if not is_xml_name(name):
        raise RequestError(
            f"{param}.name: calls of this model cannot name {name[:50]!r}.", param=f"{param}.name"
        )
    content = {"type": "grammar", "grammar": xml_parameters_grammar(parameters, f"{param}.parameters")}
    begin = f"<tool_call>\n<function={name}>\n"
    return {"type": "tag", "begin": begin, "content": content, "end": "\n</function>\n</tool_call>"}


def _of_object(tool: Tool, param: str) -> dict[str, Any]:
    """The schema of the arguments, which are an object also where it does not say so."""
    parameters = tool.function.parameters or _NO_PARAMETERS
    if not {"$ref", *CHOICES} & parameters.keys():
        parameters = {"type": "object", **parameters}
    for part in alternatives(parameters):
        declared = part.get("type", "object" if "properties" in part else None)
        if declared not in ("object", ["object"]) or {"enum", "const"} & part.keys():
            raise RequestError(
                f"{param}: arguments are an object of named parameters: the type must be 'object', without 'enum' and "
                "'const', also of what the schema refers to or chooses from.",
                param=param,
                code="invalid_schema",
            )
    return parameters


def _content(body: GenerationOptions) -> tuple[Format, str] | None:
    """What is asked of the text, and by which parameter."""
    response, structured = body.response_format, body.structured_outputs
    if response is not None and response.type != "text":
        if structured is not None:
            raise RequestError(
                "structured_outputs: leave it out beside response_format.", param="structured_outputs"
            )
        if response.type == "json_object":
            return _json({"type": "object"}, "response_format"), "response_format"
        if response.json_schema is None:
            param = "response_format.json_schema"
            raise RequestError(f"{param} is missing.", param=param, code="missing_required_parameter")
        schema = response.json_schema.schema_ if response.json_schema.schema_ is not None else {}
        return _json(schema, "response_format.json_schema.schema"), "response_format"
    return None if structured is None else (_structured(structured), "structured_outputs")


def _structured(asked: StructuredOutputs) -> Format:
    given = asked.given
    if len(given) != 1:
        raise RequestError(
            "structured_outputs: give exactly one of json, json_object, regex, choice and grammar.",
            param="structured_outputs",
        )
    [(name, value)] = given.items()
    param = f"structured_outputs.{name}"
    match name:
        case "json":
            return _json(_parsed(value, param), param)
        case "json_object":
            return _json({"type": "object"}, param)
        case "regex":
            check_pattern(value, param)
            return {"type": "regex", "pattern": value}
        case "grammar":
            check_repeats(value, param)
            return {"type": "grammar", "grammar": value}
    if not 0 < len(value) <= _MAX_CHOICES or not all(value):
        raise RequestError(f"{param}: give between 1 and {_MAX_CHOICES} texts, none empty.", param=param)
    return {"type": "or", "elements": [{"type": "const_string", "value": text} for text in value]}


def _json(schema: Any, param: str) -> Format:
    return {"type": "grammar", "grammar": schema_grammar(schema, param)}


def _parsed(schema: Any, param: str) -> Any:
    if not isinstance(schema, str):
        return schema
    try:
        return json.loads(schema)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{param}: is no JSON: {error}.", param=param) from error
