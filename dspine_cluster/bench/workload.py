"""The miniature's held-out prompts as token ids, by task: five families, several turns, long prompts."""

from __future__ import annotations

from random import Random

from tokenizers import Tokenizer

from dspine_cluster.errors import ConfigError
from dspine_cluster.miniature.data.conversation import Conversation, Split
from dspine_cluster.miniature.data.history import long_prompt, with_history
from dspine_cluster.miniature.data.mixture import TASKS
from dspine_cluster.miniature.templating import render_prompt

MULTI_TURN = "multi-turn"
LONG = "long"
TASK_NAMES: tuple[str, ...] = (*TASKS, MULTI_TURN, LONG)
MIN_LONG_TOKENS = 2048
MAX_LONG_TOKENS = 3840


def held_out_workload(tokenizer: Tokenizer, task: str, count: int, seed: int) -> list[list[int]]:
    """`count` prompts of a task; equal arguments give equal prompts.

    Raises:
        ConfigError: there is no such task.
    """
    if task not in TASK_NAMES:
        raise ConfigError(f"no task {task!r}; choose from {', '.join(TASK_NAMES)}")
    rng = Random(f"{task} {seed}")

    def encode(conversation: Conversation) -> list[int]:
        ids: list[int] = tokenizer.encode(render_prompt(conversation), add_special_tokens=False).ids
        return ids

    def make() -> list[int]:
        if task == LONG:
            length = rng.randint(MIN_LONG_TOKENS, MAX_LONG_TOKENS - 512)
            return long_prompt(rng, Split.HELD_OUT, length, MAX_LONG_TOKENS, encode)
        if task == MULTI_TURN:
            return encode(with_history(rng, Split.HELD_OUT, rng.randint(2, 4)))
        return encode(TASKS[task](rng, Split.HELD_OUT))

    return [make() for _ in range(count)]
