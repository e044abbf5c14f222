from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models

from dspine_cluster.errors import CheckpointError
from dspine_cluster.token_bytes import TokenBytes
from tests.verifier.harness import byte_tokenizer


def test_every_id_has_its_bytes() -> None:
    token_bytes = TokenBytes(byte_tokenizer())
    data = "é".encode()
    ids = byte_tokenizer().encode("é").ids
    assert b"".join(token_bytes.of(token_id, skip_special_tokens=False) for token_id in ids) == data


def test_special_tokens_have_none_where_they_are_skipped() -> None:
    token_bytes = TokenBytes(byte_tokenizer())
    assert token_bytes.of(299, skip_special_tokens=True) == b""
    assert token_bytes.of(299, skip_special_tokens=False) == b"<|299|>"


def test_another_kind_of_tokenizer_is_refused() -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.decoder = decoders.Metaspace()
    with pytest.raises(CheckpointError, match="byte-level BPE"):
        TokenBytes(tokenizer)
