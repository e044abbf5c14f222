"""Chat completions, whole or event by event."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from dspine_cluster.api.answer_events import Call, Event, Merged, merge
from dspine_cluster.api.answer_parser import AnswerFormat, AnswerParser
from dspine_cluster.api.answers import AnswerHead, Outputs, total_usage
from dspine_cluster.api.responses import (
    CalledFunction,
    CalledFunctionDelta,
    ChatAnswer,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    ToolCall,
    ToolCallDelta,
    UsageBody,
)


async def whole_chat(
    head: AnswerHead, outputs: Outputs, num_choices: int, answer_format: AnswerFormat
) -> ChatCompletion:
    """The answer of a chat request that does not stream."""
    parsers = defaultdict[int, AnswerParser](lambda: AnswerParser(answer_format))
    events = defaultdict[int, list[Event]](list)
    async with aclosing(outputs):
        async for index, output in outputs:
            events[index] += parsers[index].push(output)
    choices = [
        ChatChoice(
            index=index,
            message=_message(merge(events[index])),
            finish_reason=parsers[index].finish_reason,
            logprobs=None,
        )
        for index in sorted(parsers)
    ]
    return ChatCompletion(
        id=head.id,
        object="chat.completion",
        created=head.created,
        model=head.model,
        choices=choices,
        usage=_usage(parsers, num_choices),
    )


async def chat_events(
    head: AnswerHead,
    outputs: Outputs,
    num_choices: int,
    answer_format: AnswerFormat,
    *,
    include_usage: bool,
) -> AsyncGenerator[ChatCompletionChunk, None]:
    """The events of a streamed chat: the role of each choice first, then one a round that made something certain."""
    parsers: dict[int, AnswerParser] = {}
    async with aclosing(outputs):
        async for index, output in outputs:
            if index not in parsers:
                parsers[index] = AnswerParser(answer_format)
                yield _chunk(head, [_choice(index, ChatDelta(role="assistant", content=""), None)])
            events = parsers[index].push(output)
            finish_reason = parsers[index].finish_reason
            if events or finish_reason is not None:
                yield _chunk(head, [_choice(index, _delta(merge(events)), finish_reason)])
    if include_usage:
        yield _chunk(head, [], _usage(parsers, num_choices))


def _message(answer: Merged) -> ChatAnswer:
    content = None if answer.calls and not answer.content else answer.content
    message = ChatAnswer(role="assistant", content=content)
    if answer.reasoning:
        message.reasoning_content = answer.reasoning
    if answer.calls:
        message.tool_calls = [
            ToolCall(
                id=_new_call_id(),
                type="function",
                function=CalledFunction(name=call.name or "", arguments=call.arguments),
            )
            for call in answer.calls
        ]
    return message


def _delta(new: Merged) -> ChatDelta:
    delta = ChatDelta()
    if new.reasoning:
        delta.reasoning_content = new.reasoning
    if new.content:
        delta.content = new.content
    if new.calls:
        delta.tool_calls = [_call_delta(call) for call in new.calls]
    return delta


def _call_delta(call: Call) -> ToolCallDelta:
    if call.name is None:
        return ToolCallDelta(index=call.index, function=CalledFunctionDelta(arguments=call.arguments))
    return ToolCallDelta(
        index=call.index,
        id=_new_call_id(),
        type="function",
        function=CalledFunctionDelta(name=call.name, arguments=call.arguments),
    )


def _new_call_id() -> str:
    return f"call_{uuid.uuid4().hex}"


def _usage(parsers: Mapping[int, AnswerParser], num_choices: int) -> UsageBody:
    answers = [parsers[index] for index in sorted(parsers)]
    reasoning_tokens = [answer.reasoning_tokens for answer in answers]
    known = [count for count in reasoning_tokens if count is not None]
    total = sum(known) if len(known) == len(answers) else None
    return total_usage((answer.usage for answer in answers), num_choices, total)


def _choice(index: int, delta: ChatDelta, finish_reason: str | None) -> ChatChunkChoice:
    return ChatChunkChoice(index=index, delta=delta, finish_reason=finish_reason, logprobs=None)


def _chunk(
    head: AnswerHead, choices: list[ChatChunkChoice], usage: UsageBody | None = None
) -> ChatCompletionChunk:
    return ChatCompletionChunk(
        id=head.id,
        object="chat.completion.chunk",
        created=head.created,
        model=head.model,
        choices=choices,
        usage=usage,
    )
