"""Documents to token ids with a loss weight each, packed into sequences of equal length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from dspine_cluster.miniature.data.conversation import Conversation
from dspine_cluster.miniature.templating import render
from dspine_cluster.miniature.tokenizer import END_OF_MESSAGE, END_OF_TEXT, START_OF_MESSAGE, token_id

PROMPT_WEIGHT = 0.15
TEXT_WEIGHT = 0.5
POOL_SIZE = 48


@dataclass(frozen=True, slots=True)
class Encoded:
    """One document: token ids, and how much the prediction of each counts."""

    tokens: list[int]
    weights: list[float]


class Encoder:
    """Encodes documents: answers count fully, prompts little, plain text in between."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._end_of_text = token_id(tokenizer, END_OF_TEXT)
        self._end_of_message = token_id(tokenizer, END_OF_MESSAGE)
        self._answer_head = self.encode(f"{START_OF_MESSAGE}assistant\n")

    def encode(self, text: str) -> list[int]:
        """Token ids of any text; the names of added tokens become those tokens."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def document(self, document: Conversation | str) -> Encoded:
        """The document followed by the end-of-text token."""
        if isinstance(document, str):
            tokens = [*self.encode(document), self._end_of_text]
            return Encoded(tokens, [TEXT_WEIGHT] * len(tokens))
        tokens = [*self.encode(render(document)), self._end_of_text]
        return Encoded(tokens, self._answer_weights(tokens))

    def _answer_weights(self, tokens: list[int]) -> list[float]:
        weights = [PROMPT_WEIGHT] * len(tokens)
        head = self._answer_head
        inside = False
        for i, token in enumerate(tokens):
            if inside:
                weights[i] = 1.0
                inside = token != self._end_of_message
            elif tokens[max(0, i - len(head) + 1) : i + 1] == head:
                inside = True
        return weights


def sequences(documents: Iterator[Encoded], length: int) -> Iterator[Encoded]:
    """Endless sequences of exactly `length` tokens. Each starts with a document; documents that fit stay whole."""
    pool: list[Encoded] = []
    while True:
        tokens: list[int] = []
        weights: list[float] = []
        while len(tokens) < length:
            while len(pool) < POOL_SIZE:
                pool.append(next(documents))
            room = length - len(tokens)
            fitting = next((i for i, d in enumerate(pool) if len(d.tokens) <= room), 0)
            document = pool.pop(fitting)
            tokens += document.tokens[:room]
            weights += document.weights[:room]
        yield Encoded(tokens, weights)


def batches(documents: Iterator[Encoded], num_sequences: int, length: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (tokens int64, weights float32), each `[num_sequences, length + 1]`: inputs and labels overlap."""
    packed = sequences(documents, length + 1)
    while True:
        rows = [next(packed) for _ in range(num_sequences)]
        yield torch.tensor([r.tokens for r in rows]), torch.tensor([r.weights for r in rows])
