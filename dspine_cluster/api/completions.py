"""Text completions, whole or event by event."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from dspine_cluster.api.answers import AnswerHead, Outputs, collect, total_usage
from dspine_cluster.api.responses import TextChoice, TextCompletion, UsageBody
from dspine_cluster.types import Usage


async def whole_text(head: AnswerHead, outputs: Outputs, num_choices: int) -> TextCompletion:
    """The answer of a request that does not stream: `num_choices` completions of each prompt in turn."""
    completions = await collect(outputs)
    choices = [
        TextChoice(index=index, text=completion.text, finish_reason=completion.finish_reason, logprobs=None)
        for index, completion in enumerate(completions)
    ]
    return _answer(head, choices, total_usage((completion.usage for completion in completions), num_choices))


async def text_events(
    head: AnswerHead, outputs: Outputs, num_choices: int, *, include_usage: bool
) -> AsyncGenerator[TextCompletion, None]:
    """The events of a streamed text completion: one a round that made text certain."""
    usages: dict[int, Usage] = {}
    async with aclosing(outputs):
        async for index, output in outputs:
            if output.text or output.finish_reason is not None:
                choice = TextChoice(
                    index=index, text=output.text, finish_reason=output.finish_reason, logprobs=None
                )
                yield _answer(head, [choice])
            if output.finish_reason is not None:
                usages[index] = output.usage
    if include_usage:
        yield _answer(head, [], total_usage((usages[index] for index in sorted(usages)), num_choices))


def _answer(head: AnswerHead, choices: list[TextChoice], usage: UsageBody | None = None) -> TextCompletion:
    return TextCompletion(
        id=head.id,
        object="text_completion",
        created=head.created,
        model=head.model,
        choices=choices,
        usage=usage,
    )
