"""What chat and text completions share when they turn the outputs of rounds into an answer."""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field

from dspine_cluster.api.responses import CompletionTokensDetails, PromptTokensDetails, UsageBody
from dspine_cluster.types import RoundOutput, Usage

Outputs = AsyncGenerator[tuple[int, RoundOutput], None]
"""(index of the completion, what one round gave it)."""


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What every part of one answer repeats."""

    model: str
    id: str
    created: int
    """Seconds since 1970."""

    @classmethod
    def new(cls, model: str, prefix: str) -> AnswerHead:
        return cls(model, f"{prefix}-{uuid.uuid4().hex}", int(time.time()))


@dataclass(slots=True)
class Completion:
    """One completion as far as it has come."""

    texts: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    usage: Usage = field(default_factory=Usage)

    def add(self, output: RoundOutput) -> None:
        self.texts.append(output.text)
        if output.finish_reason is not None:
            self.finish_reason = output.finish_reason.value
            self.usage = output.usage

    @property
    def text(self) -> str:
        return "".join(self.texts)


async def collect(outputs: Outputs) -> list[Completion]:
    """All completions of one answer, in the order of their index."""
    completions: defaultdict[int, Completion] = defaultdict(Completion)
    async with aclosing(outputs):
        async for index, output in outputs:
            completions[index].add(output)
    return [completions[index] for index in sorted(completions)]


def total_usage(usages: Iterable[Usage], num_choices: int, reasoning_tokens: int | None = None) -> UsageBody:
    """The sum over completions, in the order of their index. A prompt with `num_choices` completions counts once.
    `reasoning_tokens`, of all completions, are left out where they are not known."""
    usages = list(usages)
    prompts = usages[::num_choices]
    prompt_tokens = sum(usage.prompt_tokens for usage in prompts)
    completion_tokens = sum(usage.output_tokens for usage in usages)
    accepted = sum(usage.accepted_tokens for usage in usages)
    verified = sum(usage.verified_tokens for usage in usages)
    details = CompletionTokensDetails(
        accepted_prediction_tokens=accepted, rejected_prediction_tokens=verified - accepted
    )
    if reasoning_tokens is not None:
        details.reasoning_tokens = reasoning_tokens
    return UsageBody(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details=PromptTokensDetails(
            cached_tokens=sum(usage.cached_prompt_tokens for usage in prompts)
        ),
        completion_tokens_details=details,
    )
