"""What chat and text completions share when they turn the outputs of rounds into an answer."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass

from dspine_cluster.api.bodies import CompletionTokensDetails, PromptTokensDetails, UsageBody
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
        return cls(model, f"{prefix}{uuid.uuid4().hex}", int(time.time()))


def total_usage(
    by_index: Mapping[int, Usage], num_choices: int, reasoning_tokens: int | None = None
) -> UsageBody:
    """The sum over completions, given by index. A prompt with `num_choices` completions counts once, as the first of
    them found it. `reasoning_tokens`, of all completions, are left out where they are not known."""
    usages = by_index.values()
    firsts = {index // num_choices: by_index[index] for index in sorted(by_index, reverse=True)}
    prompts = firsts.values()
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
