"""The miniature's held-out prompts as token ids, by task: five families, several turns, long prompts."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tokenizers import Tokenizer

from dspine_cluster.errors import ConfigError
from dspine_cluster.miniature.data.conversation import Conversation, Message, Split
from dspine_cluster.miniature.data.mixture import TASKS
from dspine_cluster.miniature.templating import render_prompt

MULTI_TURN = "multi-turn"
LONG = "long"
TASK_NAMES: tuple[str, ...] = (*TASKS, MULTI_TURN, LONG)
MIN_LONG_TOKENS = 2048
MAX_LONG_TOKENS = 3840
_HISTORY_TASKS = ("arithmetic", "code", "prose", "chat")


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
            return _long_prompt(rng, encode)
        if task == MULTI_TURN:
            return encode(_with_history(rng, num_exchanges=rng.randint(2, 4)))
        return encode(TASKS[task](rng, Split.HELD_OUT))

    return [make() for _ in range(count)]


def _with_history(rng: Random, num_exchanges: int) -> Conversation:
    """Earlier exchanges of other held-out conversations, then a tool conversation or a question."""
    last = TASKS[rng.choice(("tools", *_HISTORY_TASKS))](rng, Split.HELD_OUT)
    history = [message for _ in range(num_exchanges) for message in _exchange(rng)]
    system = [m for m in last.messages if m["role"] == "system"]
    rest = [m for m in last.messages if m["role"] != "system"]
    return Conversation((*system, *history, *rest), last.tools, last.expected)


def _exchange(rng: Random) -> list[Message]:
    conversation = TASKS[rng.choice(_HISTORY_TASKS)](rng, Split.HELD_OUT)
    return [message for message in conversation.messages if message["role"] != "system"]


def _long_prompt(rng: Random, encode: Callable[[Conversation], list[int]]) -> list[int]:
    """A conversation whose history makes it MIN_LONG_TOKENS to MAX_LONG_TOKENS long."""
    length = rng.randint(MIN_LONG_TOKENS, MAX_LONG_TOKENS - 512)
    num_exchanges = 8
    while True:
        prompt = encode(_with_history(rng, num_exchanges))
        if length <= len(prompt) <= MAX_LONG_TOKENS:
            return prompt
        num_exchanges = max(1, round(num_exchanges * (length + 256) / len(prompt)))
