from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.api.answering.token_texts import TokenNames, TokenTexts
from tests.api.fakes import NAMES, byte_tokenizer


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_texts_of_tokens_join_to_the_text(text: str) -> None:
    texts = TokenTexts(NAMES.token_bytes)
    assert "".join(map(texts.push, byte_tokenizer().encode(text))) == text


def test_special_tokens_have_names_but_no_text_unless_asked_for() -> None:
    assert NAMES.name(257) == "<|im_end|>"
    assert TokenTexts(NAMES.token_bytes).push(257) == ""
    assert TokenTexts(NAMES.token_bytes, skip_special_tokens=False).push(257) == "<|im_end|>"


def test_a_part_of_a_character_has_its_bytes_and_no_name_of_its_own() -> None:
    first, second = byte_tokenizer().encode("é")
    assert NAMES.name(first) == "\ufffd"
    assert NAMES.data(first) + NAMES.data(second) == "é".encode()


def test_names_may_be_ids() -> None:
    assert TokenNames(NAMES.token_bytes, as_ids=True).name(65) == "token_id:65"
