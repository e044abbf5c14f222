"""How many tokens a text has at least, known from its bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tokenizers import Tokenizer

from dspine_cluster.errors import RequestError

_KEEPS_ALL = frozenset({"Sequence", "Split", "ByteLevel", "Digits", "Punctuation"})
"""Pre-tokenizers that leave nothing out, unless told to remove what they split at."""


class TokenBound:
    """Of a byte-level BPE tokenizer: no token stands for more bytes than the longest of the vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._normalizer = tokenizer.normalizer
        added = tokenizer.get_added_tokens_decoder().values()
        lengths = [len(token) for token in tokenizer.get_vocab(with_added_tokens=False)]
        lengths += [len(token.content.encode()) for token in added]
        keeps_all = _keeps_all(tokenizer.pre_tokenizer) and not any(t.lstrip or t.rstrip for t in added)
        self._max_token_bytes = max(lengths) if keeps_all else None
        """None: tokens may stand for any number of bytes."""

    def min_tokens(self, text: str) -> int:
        """Tokens that `text`, without lone surrogates, has at least. Encodes nothing."""
        if self._max_token_bytes is None:
            return 0
        return -(-len(text.encode()) // self._max_token_bytes)

    def check(self, text: str, max_model_len_tokens: int, param: str) -> None:
        """Raises RequestError when `text` has as many tokens as a context, however it is encoded."""
        if self.min_tokens(text) < max_model_len_tokens:
            return
        if self._normalizer is not None:
            text = self._normalizer.normalize_str(text)
        num_tokens = self.min_tokens(text)
        if num_tokens >= max_model_len_tokens:
            raise context_exceeded(max_model_len_tokens, f"at least {num_tokens}", param)


def context_exceeded(max_model_len_tokens: int, prompt_tokens: str, param: str) -> RequestError:
    """What the client of a prompt is told that leaves no room for an answer."""
    return RequestError(
        f"This model's maximum context length is {max_model_len_tokens} tokens, and the prompt alone has "
        f"{prompt_tokens}. Shorten the prompt.",
        param=param,
        code="context_length_exceeded",
    )


def _keeps_all(pre_tokenizer: Any) -> bool:
    if pre_tokenizer is None:
        return True
    parts = list(_parts(json.loads(pre_tokenizer.__getstate__())))
    return all(part["type"] in _KEEPS_ALL and part.get("behavior") != "Removed" for part in parts)


def _parts(state: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield state
    for part in state.get("pretokenizers", ()):
        yield from _parts(part)
