"""Tokens as answers show them: one by one by name, and as the pieces of a text."""

from __future__ import annotations

import codecs

from dspine_cluster.token_bytes import TokenBytes


class TokenNames:
    """How log-probabilities write tokens."""

    def __init__(self, token_bytes: TokenBytes, *, as_ids: bool = False) -> None:
        self.token_bytes = token_bytes
        self._as_ids = as_ids

    def name(self, token_id: int) -> str:
        """The token's text; bytes that are no UTF-8 by themselves become U+FFFD."""
        return f"token_id:{token_id}" if self._as_ids else self.data(token_id).decode(errors="replace")

    def data(self, token_id: int) -> bytes:
        return self.token_bytes.of(token_id, skip_special_tokens=False)


class TokenTexts:
    """A text, token by token. A character that several tokens make comes with the last of them."""

    def __init__(self, token_bytes: TokenBytes, *, skip_special_tokens: bool = True) -> None:
        self._token_bytes = token_bytes
        self._skip_special_tokens = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        return self._decoder.decode(
            self._token_bytes.of(token_id, skip_special_tokens=self._skip_special_tokens)
        )
