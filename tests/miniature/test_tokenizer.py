from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from dspine_cluster import miniature
from dspine_cluster.miniature.tokenizer import (
    END_OF_MESSAGE,
    MASK,
    VOCAB_SIZE,
    save_tokenizer,
    token_id,
    train_tokenizer,
    training_texts,
)
from dspine_cluster.models.folder import load_tokenizer

COMMITTED = load_tokenizer(miniature.folder("target"))


@given(st.text())
def test_any_text_comes_back_from_its_tokens(text: str) -> None:
    tokens = COMMITTED.encode(text, add_special_tokens=False).ids
    assert COMMITTED.decode(tokens, skip_special_tokens=False) == text


@given(st.text(alphabet="0123456789", min_size=1, max_size=12))
def test_each_digit_is_one_token(digits: str) -> None:
    assert len(COMMITTED.encode(digits, add_special_tokens=False).ids) == len(digits)


def test_the_mask_token_is_the_last_of_the_vocabulary() -> None:
    assert COMMITTED.get_vocab_size() == VOCAB_SIZE
    assert token_id(COMMITTED, MASK) == VOCAB_SIZE - 1


def test_training_gives_exactly_the_asked_vocabulary(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(training_texts(seed=1, count=200), vocab_size=600)
    assert tokenizer.get_vocab_size() == 600
    assert token_id(tokenizer, MASK) == 599
    save_tokenizer(tokenizer, tmp_path)
    assert load_tokenizer(tmp_path).to_str() == tokenizer.to_str()


def test_training_is_reproducible() -> None:
    first, second = (train_tokenizer(training_texts(seed=2, count=100), vocab_size=500) for _ in range(2))
    assert first.to_str() == second.to_str()


@pytest.mark.parametrize(
    "text", ["Hello\n\n", "def f(x):\n    return 2 * x\n", f"<think>\n\n</think>{END_OF_MESSAGE}\n"]
)
def test_transformers_reads_the_same_tokens(text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(miniature.folder("target"))
    assert tokenizer(text).input_ids == COMMITTED.encode(text, add_special_tokens=False).ids


def test_training_texts_have_no_added_tokens() -> None:
    assert all("<|im_" not in text and "<tool_call>" not in text for text in training_texts(seed=1, count=50))


def test_the_tokenizer_has_no_unknown_words(tokenizer: Tokenizer) -> None:
    assert tokenizer.model.unk_token is None
