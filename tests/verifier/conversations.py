"""Conversations over a template that strips the reasoning of earlier turns, and how much of a prompt may be cached."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dspine_cluster.types import GenerateRequest, SamplingParams
from tests.verifier.harness import make_request

START, END, THINK = 296, 297, 295
"""Special tokens of the harness's byte tokenizer."""


@dataclass
class Conversation:
    """Messages so far, as the tokens that a template would make of them."""

    history: list[int]
    thinks: bool
    seen: list[list[int]] = field(default_factory=list)
    """Prompt and output of each turn."""

    def ask(
        self, message: Sequence[int], *, max_tokens: int, sampling: SamplingParams | None = None
    ) -> GenerateRequest:
        """The next turn's request."""
        before = len(self.history)
        self.history += [START, 1, *message, END, START, 2]
        opening = [THINK] if self.thinks else [THINK, THINK]
        request = make_request([*self.history, *opening], max_tokens=max_tokens, sampling=sampling)
        return replace(request, message_boundaries=(before + 2, len(self.history)))

    def answer(self, request: GenerateRequest, token_ids: Sequence[int]) -> None:
        """Keep the second half of an answer: the first was reasoning, which the template strips."""
        self.seen.append([*request.prompt_ids, *token_ids])
        self.history += [*token_ids[len(token_ids) // 2 if self.thinks else 0 :], END]

    def num_common(self, prompt: Sequence[int]) -> int:
        """The longest prefix that the prompt shares with an earlier turn, prompt and output."""
        return max((num_common(prompt, seen) for seen in self.seen), default=0)


def num_common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((position for position, (a, b) in pairs if a != b), min(len(one), len(other)))


def random_message(chance: random.Random, low: int, high: int) -> list[int]:
    return [chance.randint(0, 255) for _ in range(chance.randint(low, high))]
