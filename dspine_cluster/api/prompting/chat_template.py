"""Turns messages and texts into prompt tokens, with the tokenizer and the chat template of the model folder."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from jinja2 import TemplateError
from transformers import AutoTokenizer

from dspine_cluster.api.answering.reasoning import Thinking
from dspine_cluster.api.chat_schema import ChatMessage, Tool
from dspine_cluster.api.prompting.messages import template_messages
from dspine_cluster.api.prompting.token_bounds import TokenBound
from dspine_cluster.api.tool_calling.tool_calls import CallForm, call_forms
from dspine_cluster.api.tool_calling.tools import template_tools
from dspine_cluster.errors import CheckpointError, RequestError
from dspine_cluster.token_bytes import TokenBytes

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt as a verifier takes it."""

    token_ids: tuple[int, ...]
    message_boundaries: tuple[int, ...] = ()
    """Lengths, ascending, up to which likely later prompts of the same conversation begin in the same way."""
    thinking: Thinking = Thinking.UNDECIDED
    """How it leaves the reasoning of the answer."""


class ChatTokenizer:
    """Encodes prompts off the event loop, in one thread: the tokenizer is not safe in several.

    Templates are only ever the model folder's own, rendered by transformers in jinja's sandbox.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._template = str(tokenizer.chat_template or "")
        self.call_forms: tuple[CallForm, ...] = call_forms(self._template)
        """How the model may write tool calls."""
        self.reasoning_end_id: int | None = tokenizer.get_added_vocab().get("</think>")
        """The token `</think>`; None where the tokenizer has none."""
        self.knows_reasoning: bool = "</think>" in self._template
        self.token_bytes = TokenBytes(tokenizer.backend_tokenizer)
        self._bound = TokenBound(tokenizer.backend_tokenizer)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenizer")

    @classmethod
    def from_folder(cls, folder: Path) -> ChatTokenizer:
        """Raises CheckpointError when `folder` holds no tokenizer."""
        try:
            return cls(AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"No tokenizer could be loaded from {folder}: {error}") from error

    async def encode_chat(
        self,
        messages: Sequence[ChatMessage],
        template_kwargs: Mapping[str, Any],
        tools: Sequence[Tool] = (),
        max_model_len_tokens: int | None = None,
    ) -> EncodedPrompt:
        """Renders `messages` and `tools` up to the start of the assistant's answer and encodes that once.

        `template_kwargs` are variables of the template, which callers choose, not clients. Raises RequestError when the
        template or this server cannot take the messages, or when they are too long by their bytes alone for
        `max_model_len_tokens`: then they are not encoded.
        """
        conversation = template_messages(messages)
        if tools and "tools" not in self._template:
            raise RequestError(
                "The model's chat template has no place for tools; leave them out.",
                param="tools",
                code="unsupported_parameter",
            )
        variables = {**template_kwargs, "tools": template_tools(tools) or None}
        return await self._run(lambda: self._encode_chat(conversation, variables, max_model_len_tokens))

    async def encode_text(
        self, text: str, *, add_special_tokens: bool = True, max_model_len_tokens: int | None = None
    ) -> EncodedPrompt:
        """Encodes a text prompt, by default with the tokens that the tokenizer puts before every text.

        Raises:
            RequestError: by its bytes alone it is too long for `max_model_len_tokens`; it is not encoded.
        """

        def encode() -> EncodedPrompt:
            if max_model_len_tokens is not None:
                self._bound.check(text, max_model_len_tokens, "prompt")
            return EncodedPrompt(tuple(self._tokenizer.encode(text, add_special_tokens=add_special_tokens)))

        return await self._run(encode)

    async def encode_words(self, words: Sequence[str]) -> list[tuple[int, ...]]:
        """The tokens of each word by itself."""
        encode = self._tokenizer.encode
        return await self._run(lambda: [tuple(encode(word, add_special_tokens=False)) for word in words])

    async def token_strs(self, token_ids: Sequence[int]) -> list[str]:
        """Tokens of the tokenizer as its vocabulary has them."""
        return await self._run(lambda: list(self._tokenizer.convert_ids_to_tokens(list(token_ids))))

    async def decode(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, special ones included."""
        return await self._run(lambda: str(self._tokenizer.decode(list(token_ids))))

    async def _run(self, encode: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, encode)

    def _encode_chat(
        self,
        conversation: list[dict[str, Any]],
        template_kwargs: Mapping[str, Any],
        max_model_len_tokens: int | None,
    ) -> EncodedPrompt:
        text = self._render(conversation, template_kwargs)
        if max_model_len_tokens is not None:
            self._bound.check(text, max_model_len_tokens, "messages")
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        token_ends = [end for _, end in encoded["offset_mapping"]]
        boundaries = {
            bisect_right(token_ends, end) for end in self._boundaries(conversation, template_kwargs, text)
        }
        return EncodedPrompt(
            tuple(encoded["input_ids"]), tuple(sorted(boundaries - {0})), Thinking.after(text)
        )

    def _boundaries(
        self, conversation: list[dict[str, Any]], template_kwargs: Mapping[str, Any], text: str
    ) -> Iterator[int]:
        """The numbers of characters of `text` that come back when the last message is changed, and on the next turn.

        Found by rendering, because templates rewrite what was said before: they strip its reasoning, for one.
        """
        last = conversation[-1]
        changed = {**last, "content": "." if last["content"].lstrip()[:1] == "-" else "-"}
        answered = [*conversation, {"role": "assistant", "content": "-"}, {"role": "user", "content": "-"}]
        for later in ([*conversation[:-1], changed], answered):
            try:
                other = self._render(later, template_kwargs)
            except RequestError:
                continue  # no prompt that the template takes
            yield _num_common(text, other)

    def _render(self, conversation: list[dict[str, Any]], template_kwargs: Mapping[str, Any]) -> str:
        if not self._template:
            raise RequestError(
                "This model has no chat template; use /v1/completions.", code="no_chat_template"
            )
        try:
            text: str = self._tokenizer.apply_chat_template(
                conversation, tokenize=False, **{"add_generation_prompt": True, **template_kwargs}
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise RequestError(
                f"The model's chat template refuses these messages: {error}", param="messages"
            ) from error
        return text


def _num_common(one: str, other: str) -> int:
    """How many characters both begin with."""
    lengths = range(1, min(len(one), len(other)) + 1)
    return bisect_left(lengths, True, key=lambda length: one[:length] != other[:length])
