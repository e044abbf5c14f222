"""The miniature's held-out prompts as token ids, by task: five families, several turns, long prompts."""

from __future__ import annotations

from random import Random

from tokenizers import Tokenizer

from dspine_cluster.miniature import prompts
from dspine_cluster.miniature.data.conversation import Conversation, Split
from dspine_cluster.miniature.data.history import long_prompt, with_history
from dspine_cluster.miniature.templating import render_prompt

MULTI_TURN = "multi-turn"
LONG = "long"
TASK_NAMES: tuple[str, ...] = (*prompts.TASK_NAMES, MULTI_TURN, LONG)
LONG_TOKENS = (2048, 3840)
"""Shortest and longest of the long prompts."""


def held_out_workload(tokenizer: Tokenizer, task: str, count: int, seed: int) -> list[list[int]]:
    """`count` prompts of a task; equal arguments give equal prompts.

    Raises:
        ConfigError: there is no such task.
    """
    rng = Random(f"{task} {seed}")

    def encode(conversation: Conversation) -> list[int]:
        ids: list[int] = tokenizer.encode(render_prompt(conversation), add_special_tokens=False).ids
        return ids

    if task == LONG:
        return [long_prompt(rng, Split.HELD_OUT, LONG_TOKENS, encode) for _ in range(count)]
    if task == MULTI_TURN:
        return [encode(with_history(rng, Split.HELD_OUT, rng.randint(2, 4))) for _ in range(count)]
    return [encode(conversation) for conversation in prompts.held_out(task, count, seed)]
