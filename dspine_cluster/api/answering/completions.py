"""Text completions, whole or event by event."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from dspine_cluster.api.answering.answers import AnswerHead, Outputs, total_usage
from dspine_cluster.api.answering.choice_details import AnswerOptions, ChoiceDetails
from dspine_cluster.api.answering.logprobs import TextLogprobsWriter
from dspine_cluster.api.answering.ready_events import ReadyEvents
from dspine_cluster.api.bodies import TextChoice, TextCompletion, UsageBody
from dspine_cluster.types import FinishReason, RoundOutput, Usage


@dataclass(frozen=True, slots=True)
class CompletionPrompt:
    """One prompt of a request."""

    token_ids: tuple[int, ...]
    echo: str | None = None
    """The prompt's text, where the completions begin with it."""


async def whole_text(
    head: AnswerHead, outputs: Outputs, options: AnswerOptions, prompts: Sequence[CompletionPrompt]
) -> TextCompletion:
    """The answer of a request that does not stream: the completions of each prompt in turn."""
    parts: dict[int, _Parts] = {}
    async with aclosing(outputs):
        async for index, output in outputs:
            _of(parts, index, options, prompts).push(output)
    return _answer(head, [parts[index].take() for index in sorted(parts)], _usage(parts, options))


async def text_events(
    head: AnswerHead, outputs: Outputs, options: AnswerOptions, prompts: Sequence[CompletionPrompt]
) -> AsyncGenerator[TextCompletion | bytes, None]:
    """The events of a streamed text completion: one a round that made text certain, or one a token. Bytes are the JSON
    of an event that brings nothing but text."""
    parts: dict[int, _Parts] = {}
    texts = ReadyEvents[int](lambda index, text: _answer(head, [_choice(index, text, None)]))
    async with aclosing(outputs):
        async for index, output in outputs:
            part = _of(parts, index, options, prompts)
            for piece in part.split(output):
                part.push(piece)
                if options.only_text and not part.has_ended:
                    if (text := part.take_text()) or options.each_token:
                        yield texts.event(index, text)
                elif part.has_news or options.each_token:
                    usage = _usage(parts, options) if options.continuous_usage else None
                    yield _answer(head, [part.take()], usage)
    if options.include_usage:
        yield _answer(head, [], _usage(parts, options))


async def prompts_alone(outputs: Outputs) -> AsyncGenerator[tuple[int, RoundOutput], None]:
    """The outputs of requests of one token, without that token."""
    async with aclosing(outputs):
        async for index, output in outputs:
            yield (
                index,
                RoundOutput(
                    (),
                    "",
                    finish_reason=FinishReason.LENGTH,
                    usage=replace(output.usage, output_tokens=0),
                    prompt_logprobs=output.prompt_logprobs,
                ),
            )


class _Parts:
    """One completion, part by part."""

    def __init__(self, index: int, options: AnswerOptions, prompt: CompletionPrompt) -> None:
        self._index = index
        self._options = options
        self._prompt = prompt
        self._details = ChoiceDetails(options)
        self._logprobs = TextLogprobsWriter(
            options.names, prompt.token_ids if prompt.echo is not None else (), prompt.echo or ""
        )
        self._texts = [prompt.echo or ""]
        self._finish_reason: str | None = None
        self._is_first = True
        self.usage = Usage()

    @property
    def has_ended(self) -> bool:
        return self._finish_reason is not None

    @property
    def has_news(self) -> bool:
        return any(self._texts) or self.has_ended

    def split(self, output: RoundOutput) -> Iterable[RoundOutput]:
        return self._details.split(output)

    def push(self, output: RoundOutput) -> None:
        self._details.push(output)
        self._texts.append(output.text)
        self.usage = output.usage
        if output.finish_reason is not None:
            self._finish_reason = output.finish_reason.value

    def take(self) -> TextChoice:
        """What has come since the last part."""
        choice = _choice(self._index, self.take_text(), self._finish_reason)
        outputs = self._details.fill(choice)
        if self._options.logprobs:
            choice.logprobs = self._logprobs.write(outputs)
        if self._options.token_ids and self._is_first:
            choice.prompt_token_ids = list(self._prompt.token_ids)
        self._is_first = False
        return choice

    def take_text(self) -> str:
        """The text alone of what has come since the last part."""
        text, self._texts = "".join(self._texts), []
        return text


def _of(
    parts: dict[int, _Parts], index: int, options: AnswerOptions, prompts: Sequence[CompletionPrompt]
) -> _Parts:
    if index not in parts:
        parts[index] = _Parts(index, options, prompts[index // options.num_choices])
    return parts[index]


def _usage(parts: Mapping[int, _Parts], options: AnswerOptions) -> UsageBody:
    return total_usage({index: part.usage for index, part in parts.items()}, options.num_choices)


def _choice(index: int, text: str, finish_reason: str | None) -> TextChoice:
    return TextChoice(index=index, text=text, finish_reason=finish_reason, logprobs=None)


def _answer(head: AnswerHead, choices: list[TextChoice], usage: UsageBody | None = None) -> TextCompletion:
    return TextCompletion(
        id=head.id,
        object="text_completion",
        created=head.created,
        model=head.model,
        choices=choices,
        usage=usage,
    )
