"""Held-out prompts of the task families: phrasings that training never saw, filled with new draws."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from dspine_cluster.errors import ConfigError
from dspine_cluster.miniature.data.conversation import Conversation, Message, Split, Tool
from dspine_cluster.miniature.data.mixture import TASKS
from dspine_cluster.miniature.templating import system_with_tools

TASK_NAMES: tuple[str, ...] = tuple(TASKS)
"""arithmetic, code, tools, prose, chat."""


@dataclass(frozen=True, slots=True)
class HeldOutPrompt:
    """One prompt, the tools on offer, and what an exact check of the answer looks for, where there is such a check."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    expected: str | None


def held_out(task: str, count: int, seed: int) -> list[HeldOutPrompt]:
    """`count` prompts of a task; equal arguments give equal prompts.

    Raises:
        ConfigError: there is no such task.
    """
    if task not in TASKS:
        raise ConfigError(f"no task {task!r}; choose from {', '.join(TASK_NAMES)}")
    rng = Random(f"{task} {seed}")
    return [_prompt(TASKS[task](rng, Split.HELD_OUT)) for _ in range(count)]


def held_out_prompts(task: str, count: int, seed: int) -> list[list[Message]]:
    """The prompts of `held_out` as messages alone; tools are written into the system message as the template does.

    Raises:
        ConfigError: there is no such task.
    """
    return [_self_contained(prompt) for prompt in held_out(task, count, seed)]


def _prompt(conversation: Conversation) -> HeldOutPrompt:
    return HeldOutPrompt(conversation.prompt, conversation.tools, conversation.expected)


def _self_contained(prompt: HeldOutPrompt) -> list[Message]:
    messages = list(prompt.messages)
    if not prompt.tools:
        return messages
    system = messages.pop(0)["content"] if messages[0]["role"] == "system" else ""
    return [{"role": "system", "content": system_with_tools(system, prompt.tools)}, *messages]
