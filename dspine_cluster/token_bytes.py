"""The bytes behind the tokens of a byte-level BPE tokenizer."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders

from dspine_cluster.errors import CheckpointError


class TokenBytes:
    """The bytes each token of a byte-level BPE tokenizer stands for; shared by all requests.

    Raises CheckpointError for a tokenizer with another decoder.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        if not isinstance(tokenizer.decoder, decoders.ByteLevel):
            raise CheckpointError(
                f"the tokenizer decodes with {type(tokenizer.decoder).__name__}; only byte-level BPE, the kind of "
                "the qwen3 and qwen3_5 targets, is supported: check tokenizer.json"
            )
        self._tokenizer = tokenizer
        self._special_ids = frozenset(
            token_id for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special
        )
        self._bytes: dict[int, bytes] = {}

    def of(self, token_id: int, *, skip_special_tokens: bool) -> bytes:
        """Empty for ids without a token, and for special tokens if they are skipped."""
        if skip_special_tokens and token_id in self._special_ids:
            return b""
        data = self._bytes.get(token_id)
        if data is None:
            data = self._bytes[token_id] = _bytes_of(self._tokenizer.id_to_token(token_id) or "")
        return data


def _bytes_of(token: str) -> bytes:
    """Added tokens hold plain text, in which some characters stand for no byte: the decoder takes them as they are."""
    try:
        return bytes(_BYTE_OF_CHAR[char] for char in token)
    except KeyError:
        return token.encode()


def _byte_alphabet() -> dict[str, int]:
    """The characters that byte-level BPE writes bytes with (Radford et al. 2019): printable ones themselves, the
    others, in order, U+0100 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF_CHAR = _byte_alphabet()
