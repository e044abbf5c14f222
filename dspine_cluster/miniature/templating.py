"""Render conversations with the miniature's chat template, as transformers does."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dspine_cluster.miniature.data.conversation import Conversation

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
