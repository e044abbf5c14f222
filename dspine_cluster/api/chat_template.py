"""Turns messages and texts into prompt tokens, with the tokenizer and the chat template of the model folder."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from jinja2 import TemplateError
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from dspine_cluster.api.schema import ChatMessage
from dspine_cluster.errors import CheckpointError, RequestError

_T = TypeVar("_T")
_RESERVED_TEMPLATE_NAMES = frozenset(
    inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters
)


class ChatTokenizer:
    """Encodes prompts off the event loop, in one thread: the tokenizer is not safe in several.

    Templates are only ever the model folder's own, rendered by transformers in jinja's sandbox.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenizer")

    @classmethod
    def from_folder(cls, folder: Path) -> ChatTokenizer:
        """Raises CheckpointError when `folder` holds no tokenizer."""
        try:
            return cls(AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"No tokenizer could be loaded from {folder}: {error}") from error

    async def encode_chat(
        self, messages: Sequence[ChatMessage], template_kwargs: Mapping[str, Any]
    ) -> tuple[int, ...]:
        """Renders `messages` up to the start of the assistant's answer and encodes that once.

        Raises RequestError when the template or this server cannot take them.
        """
        conversation = [_plain_message(message, index) for index, message in enumerate(messages)]
        if reserved := sorted(_RESERVED_TEMPLATE_NAMES.intersection(template_kwargs)):
            raise RequestError(
                f"chat_template_kwargs may not set {', '.join(reserved)}.", param="chat_template_kwargs"
            )
        return await self._run(
            lambda: self._encode(self._render(conversation, template_kwargs), special=False)
        )

    async def encode_text(self, text: str) -> tuple[int, ...]:
        """Encodes a text prompt, with the tokens that the tokenizer puts before every text."""
        return await self._run(lambda: self._encode(text, special=True))

    async def _run(self, encode: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, encode)

    def _encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=special))

    def _render(self, conversation: list[dict[str, str]], template_kwargs: Mapping[str, Any]) -> str:
        if self._tokenizer.chat_template is None:
            raise RequestError(
                "This model has no chat template; use /v1/completions.", code="no_chat_template"
            )
        try:
            text: str = self._tokenizer.apply_chat_template(
                conversation, tokenize=False, add_generation_prompt=True, **template_kwargs
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise RequestError(
                f"The model's chat template refuses these messages: {error}", param="messages"
            ) from error
        return text


def _plain_message(message: ChatMessage, index: int) -> dict[str, str]:
    """The message as templates expect it: text parts joined, `developer` under its older name `system`."""
    param = f"messages[{index}]"
    if message.role in ("tool", "function"):
        raise RequestError(
            f"{param}.role: messages of role {message.role!r} are not supported by this server.",
            param=f"{param}.role",
            code="unsupported_parameter",
        )
    role = "system" if message.role == "developer" else message.role
    plain = {"role": role, "content": _plain_content(message, param)}
    if message.name is not None:
        plain["name"] = message.name
    return plain


def _plain_content(message: ChatMessage, param: str) -> str:
    if message.content is None:
        raise RequestError(f"{param}.content is missing.", param=f"{param}.content")
    if isinstance(message.content, str):
        return message.content
    texts = []
    for index, part in enumerate(message.content):
        if part.type != "text" or part.text is None:
            raise RequestError(
                f"{param}.content[{index}]: only parts of type 'text' with a text are supported.",
                param=f"{param}.content[{index}]",
                code="unsupported_content",
            )
        texts.append(part.text)
    return "".join(texts)
