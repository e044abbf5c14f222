"""Chat completions, whole or event by event."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

from dspine_cluster.api.answering.answer_events import Call, Event, Merged, merge
from dspine_cluster.api.answering.answer_parser import AnswerFormat, AnswerParser
from dspine_cluster.api.answering.answers import AnswerHead, Outputs, total_usage
from dspine_cluster.api.answering.choice_details import AnswerOptions, ChoiceDetails
from dspine_cluster.api.answering.logprobs import chat_logprobs
from dspine_cluster.api.answering.ready_events import ReadyEvents
from dspine_cluster.api.bodies import (
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
from dspine_cluster.types import RoundOutput


@dataclass(frozen=True, slots=True)
class StartedChat:
    """A chat that is being answered."""

    outputs: Outputs
    answer_format: AnswerFormat = field(default_factory=AnswerFormat)
    prompt_ids: tuple[int, ...] = ()


async def whole_chat(head: AnswerHead, chat: StartedChat, options: AnswerOptions) -> ChatCompletion:
    """The answer of a chat request that does not stream."""
    parts = defaultdict[int, _Parts](lambda: _Parts(options, chat.answer_format))
    async with aclosing(chat.outputs) as outputs:
        async for index, output in outputs:
            parts[index].push(output)
    choices = []
    for index, part in sorted(parts.items()):
        choice = ChatChoice(
            index=index, message=_message(part.take()), finish_reason=part.finish_reason, logprobs=None
        )
        part.fill(choice)
        choices.append(choice)
    answer = ChatCompletion(
        id=head.id,
        object="chat.completion",
        created=head.created,
        model=head.model,
        choices=choices,
        usage=_usage(parts, options),
    )
    if options.token_ids:
        answer.prompt_token_ids = list(chat.prompt_ids)
    return answer


async def chat_events(
    head: AnswerHead, chat: StartedChat, options: AnswerOptions
) -> AsyncGenerator[ChatCompletionChunk | bytes, None]:
    """The events of a streamed chat: the role of each choice first, then one a round that made something certain,
    or one a token. Bytes are the JSON of an event that brings nothing but text or reasoning."""
    parts: dict[int, _Parts] = {}
    texts = ReadyEvents[tuple[int, bool]](
        lambda kind, text: _chunk(head, [_choice(kind[0], _text_delta(text, is_reasoning=kind[1]), None)])
    )
    async with aclosing(chat.outputs) as outputs:
        async for index, output in outputs:
            if index not in parts:
                chunk = _chunk(head, [_choice(index, ChatDelta(role="assistant", content=""), None)])
                if options.token_ids and not parts:
                    chunk.prompt_token_ids = list(chat.prompt_ids)
                parts[index] = _Parts(options, chat.answer_format)
                yield chunk
            part = parts[index]
            for piece in part.split(output):
                part.push(piece)
                if not (part.has_news or options.each_token):
                    continue
                new = part.take()
                if options.only_text and new.is_one_text and part.finish_reason is None:
                    yield texts.event((index, bool(new.reasoning)), new.reasoning or new.content)
                    continue
                choice = _choice(index, _delta(new), part.finish_reason)
                part.fill(choice)
                yield _chunk(head, [choice], _usage(parts, options) if options.continuous_usage else None)
    if options.include_usage:
        yield _chunk(head, [], _usage(parts, options))


class _Parts:
    """One answer, part by part."""

    def __init__(self, options: AnswerOptions, answer_format: AnswerFormat) -> None:
        self.parser = AnswerParser(answer_format)
        self._options = options
        self._details = ChoiceDetails(options)
        self._events: list[Event] = []

    @property
    def finish_reason(self) -> str | None:
        return self.parser.finish_reason

    @property
    def has_news(self) -> bool:
        return bool(self._events) or self.finish_reason is not None

    def split(self, output: RoundOutput) -> Iterable[RoundOutput]:
        return self._details.split(output)

    def push(self, output: RoundOutput) -> None:
        self._events += self.parser.push(output)
        self._details.push(output)

    def take(self) -> Merged:
        """What has become certain since the last part."""
        events, self._events = self._events, []
        return merge(events)

    def fill(self, choice: ChatChoice | ChatChunkChoice) -> None:
        """Tell of the tokens since the last part."""
        outputs = self._details.fill(choice)
        if self._options.logprobs:
            choice.logprobs = chat_logprobs(outputs, self._options.names)


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


def _text_delta(text: str, *, is_reasoning: bool) -> ChatDelta:
    return ChatDelta(reasoning_content=text) if is_reasoning else ChatDelta(content=text)


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


def _usage(parts: Mapping[int, _Parts], options: AnswerOptions) -> UsageBody:
    reasoning_tokens = [part.parser.reasoning_tokens for part in parts.values()]
    known = [count for count in reasoning_tokens if count is not None]
    total = sum(known) if len(known) == len(parts) else None
    usages = {index: part.parser.usage for index, part in parts.items()}
    return total_usage(usages, options.num_choices, total)


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
