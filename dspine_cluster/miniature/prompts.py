"""Held-out prompts of the task families: phrasings that training never saw, filled with new draws."""

from __future__ import annotations

from random import Random

from dspine_cluster.errors import ConfigError
from dspine_cluster.miniature.data.conversation import Conversation, Split
from dspine_cluster.miniature.data.mixture import TASKS

TASK_NAMES: tuple[str, ...] = tuple(TASKS)
"""arithmetic, code, tools, prose, chat."""


def held_out(task: str, count: int, seed: int) -> list[Conversation]:
    """`count` conversations of a task, to be answered in place of their last message; equal arguments give equal ones.

    Raises:
        ConfigError: there is no such task.
    """
    if task not in TASKS:
        raise ConfigError(f"no task {task!r}; choose from {', '.join(TASK_NAMES)}")
    rng = Random(f"{task} {seed}")
    return [TASKS[task](rng, Split.HELD_OUT) for _ in range(count)]
