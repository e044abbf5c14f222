"""Render conversations with the miniature's chat template, as transformers does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dspine_cluster.miniature.data.conversation import Conversation, Tool

TEMPLATE_FILE = Path(__file__).parent / "chat_template.jinja"


def render(conversation: Conversation) -> str:
    """The whole conversation, answer included."""
    return _template().render(messages=conversation.messages, tools=list(conversation.tools) or None)


def render_prompt(conversation: Conversation, *, enable_thinking: bool = False) -> str:
    """What the model sees before it answers: all but the last message, then the opened answer."""
    return _template().render(
        messages=conversation.prompt,
        tools=list(conversation.tools) or None,
        add_generation_prompt=True,
        enable_thinking=enable_thinking,
    )


def system_with_tools(system: str, tools: Sequence[Tool]) -> str:
    """The content of the system message into which the template turns a system text and tools."""
    opening, closing = "<|im_start|>system\n", "<|im_end|>\n"
    messages = ([{"role": "system", "content": system}] if system else []) + [{"role": "user", "content": ""}]
    text = _template().render(messages=messages, tools=list(tools))
    return text[len(opening) : text.index(closing)]


@cache
def _template() -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    return environment.from_string(TEMPLATE_FILE.read_text(encoding="utf-8"))


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
