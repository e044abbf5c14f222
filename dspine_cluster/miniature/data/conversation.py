"""What every generator yields: a conversation whose last message is the assistant's, and the split it belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")

Message = dict[str, Any]
"""An OpenAI chat message: `role`, `content`, optionally `tool_calls` or `reasoning_content`."""

Tool = dict[str, Any]
"""An OpenAI tool definition: `{"type": "function", "function": {...}}`."""

HELD_OUT_STRIDE = 5
"""Of every list of phrasings each fifth is held out."""


class Split(StrEnum):
    """Which templates a generator may use."""

    TRAIN = "train"
    HELD_OUT = "held_out"


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in order; the last one is the assistant's answer that a model should give."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    expected: str | None = None
    """What an exact-match check looks for: the number of an arithmetic problem, or the JSON of a tool call."""

    @property
    def prompt(self) -> tuple[Message, ...]:
        return self.messages[:-1]


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def assistant(content: str, *, reasoning: str = "") -> Message:
    message: Message = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    return message


def phrasing(rng: Random, templates: Sequence[T], split: Split) -> T:
    """One of the templates that `split` may use. Lists of fewer than five have no held-out member and are shared."""
    held_out = [t for i, t in enumerate(templates) if i % HELD_OUT_STRIDE == HELD_OUT_STRIDE - 1]
    if split is Split.HELD_OUT:
        return rng.choice(held_out or templates)
    return rng.choice([t for i, t in enumerate(templates) if i % HELD_OUT_STRIDE != HELD_OUT_STRIDE - 1])
