"""Fields that the schema does not know: refused where leaving them out would change the output, else logged once."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from dspine_cluster.errors import RequestError

_logger = logging.getLogger(__name__)
_logged: set[str] = set()
_MAX_LOGGED_NAMES = 1000
_MAX_NAME_CHARS = 100

_HARMLESS_VALUES: Mapping[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "audio": (),
    "best_of": (1,),
    "chat_template": (),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_origins": (False,),
    "logits_processors": ([],),
    "logprobs": (False,),
    "modalities": (["text"],),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "reasoning_effort": (),
    "regex": (),
    "stream_tokens": (False,),
    "structural_tag": (),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
    "whitespace_pattern": (),
}
"""Known fields that change the output, and the values (besides null) with which they do not."""


def check_extra_fields(request: BaseModel) -> None:
    """Looks at every field of `request`, at any depth, that its schema does not know.

    Raises:
        RequestError: for a field whose value asks for something this server does not do.
    """
    for path, name, value in _extra_fields(request, ""):
        harmless = _HARMLESS_VALUES.get(name)
        if harmless is None:
            _log_once(name)
        elif value is not None and not _is_one_of(value, harmless):
            raise RequestError(
                f"{path} is not supported by this server with the given value; leave it out.",
                param=path,
                code="unsupported_parameter",
            )


def _extra_fields(value: Any, path: str) -> Iterator[tuple[str, str, Any]]:
    if isinstance(value, BaseModel):
        prefix = f"{path}." if path else ""
        for name, extra in (value.model_extra or {}).items():
            yield f"{prefix}{name}", name, extra
        for name in type(value).model_fields:
            yield from _extra_fields(getattr(value, name), f"{prefix}{name}")
    elif isinstance(value, list) and value and isinstance(value[0], BaseModel):
        for index, item in enumerate(value):
            yield from _extra_fields(item, f"{path}[{index}]")


def _is_one_of(value: Any, harmless: tuple[Any, ...]) -> bool:
    return any(type(value) is type(known) and value == known for known in harmless)


def _log_once(name: str) -> None:
    name = name[:_MAX_NAME_CHARS]  # strangers choose it, and it is kept
    if name not in _logged and len(_logged) < _MAX_LOGGED_NAMES:
        _logged.add(name)
        _logger.warning("Ignored unknown request field %r; it has no effect here.", name)
