"""Conversations with a past: earlier exchanges on other matters, then the one whose answer counts."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from dspine_cluster.miniature.data.conversation import Conversation, Message, Split
from dspine_cluster.miniature.data.mixture import TASKS

QUESTION_TASKS = ("arithmetic", "code", "prose", "chat")
"""Their conversations are questions and answers, without tools or a system message."""


def with_history(rng: Random, split: Split, num_exchanges: int) -> Conversation:
    """Earlier exchanges of other conversations of the split, then a tool conversation or a question."""
    last = TASKS[rng.choice(("tools", *QUESTION_TASKS))](rng, split)
    history = [message for _ in range(num_exchanges) for message in exchange(rng, split)]
    system = [m for m in last.messages if m["role"] == "system"]
    rest = [m for m in last.messages if m["role"] != "system"]
    return Conversation((*system, *history, *rest), last.tools, last.expected)


def long_prompt(
    rng: Random, split: Split, num_tokens: tuple[int, int], encode: Callable[[Conversation], list[int]]
) -> list[int]:
    """The prompt of a conversation whose history makes it long: `num_tokens` at least and at most."""
    shortest, longest = num_tokens
    length = rng.randint(shortest, max(shortest, longest - 512))
    num_exchanges = max(1, length // 256)
    while True:
        prompt = encode(with_history(rng, split, num_exchanges))
        if length <= len(prompt) <= longest:
            return prompt
        num_exchanges = max(1, round(num_exchanges * (length + 256) / len(prompt)))


def exchange(rng: Random, split: Split) -> list[Message]:
    """The questions and answers of one conversation."""
    return list(TASKS[rng.choice(QUESTION_TASKS)](rng, split).messages)
