"""The byte-level BPE of the miniature, its added tokens and its chat template."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from dspine_cluster.miniature.data.conversation import Conversation, Split
from dspine_cluster.miniature.data.mixture import documents
from dspine_cluster.miniature.templating import TEMPLATE_FILE, render

VOCAB_SIZE = 3072
END_OF_TEXT = "<|endoftext|>"
START_OF_MESSAGE = "<|im_start|>"
END_OF_MESSAGE = "<|im_end|>"
MASK = "<|mask|>"
CONTROL_TOKENS = (END_OF_TEXT, START_OF_MESSAGE, END_OF_MESSAGE)
MARKUP_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Qwen's pre-tokenisation: every digit is a token of its own."""


def train_tokenizer(texts: Iterable[str], vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """A byte-level BPE of exactly `vocab_size` tokens. The mask token has the last id; no text produces it."""
    added = (*CONTROL_TOKENS, *MARKUP_TOKENS, MASK)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(added),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in CONTROL_TOKENS])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in MARKUP_TOKENS])
    tokenizer.add_special_tokens([AddedToken(MASK, special=True, normalized=False)])
    assert tokenizer.get_vocab_size() == vocab_size
    assert tokenizer.token_to_id(MASK) == vocab_size - 1
    return tokenizer


def training_texts(seed: int, count: int) -> Iterator[str]:
    """Rendered training documents without the added tokens, which BPE must not learn to spell."""
    for document in islice(documents(seed, Split.TRAIN), count):
        text = render(document) if isinstance(document, Conversation) else document
        for token in (*CONTROL_TOKENS, *MARKUP_TOKENS):
            text = text.replace(token, "\n")
        yield text


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of a token that the tokenizer is known to have."""
    found = tokenizer.token_to_id(token)
    assert found is not None, token
    return found


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja as transformers reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 8192,
        "eos_token": END_OF_MESSAGE,
        "pad_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / TEMPLATE_FILE.name).write_text(TEMPLATE_FILE.read_text(encoding="utf-8"), encoding="utf-8")
