"""Chat completions, whole or event by event."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from dspine_cluster.api.answers import AnswerHead, Outputs, collect, total_usage
from dspine_cluster.api.responses import (
    ChatAnswer,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    UsageBody,
)
from dspine_cluster.types import Usage


async def whole_chat(head: AnswerHead, outputs: Outputs, num_choices: int) -> ChatCompletion:
    """The answer of a chat request that does not stream."""
    completions = await collect(outputs)
    choices = [
        ChatChoice(
            index=index,
            message=ChatAnswer(role="assistant", content=completion.text),
            finish_reason=completion.finish_reason,
            logprobs=None,
        )
        for index, completion in enumerate(completions)
    ]
    return ChatCompletion(
        id=head.id,
        object="chat.completion",
        created=head.created,
        model=head.model,
        choices=choices,
        usage=total_usage((completion.usage for completion in completions), num_choices),
    )


async def chat_events(
    head: AnswerHead, outputs: Outputs, num_choices: int, *, include_usage: bool
) -> AsyncGenerator[ChatCompletionChunk, None]:
    """The events of a streamed chat: the role of each choice first, then one a round that made text certain."""
    usages: dict[int, Usage] = {}
    started: set[int] = set()
    async with aclosing(outputs):
        async for index, output in outputs:
            if index not in started:
                started.add(index)
                yield _chunk(head, [_choice(index, ChatDelta(role="assistant", content=""), None)])
            if output.text or output.finish_reason is not None:
                delta = ChatDelta(content=output.text) if output.text else ChatDelta()
                yield _chunk(head, [_choice(index, delta, output.finish_reason)])
            if output.finish_reason is not None:
                usages[index] = output.usage
    if include_usage:
        yield _chunk(head, [], total_usage((usages[index] for index in sorted(usages)), num_choices))


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
