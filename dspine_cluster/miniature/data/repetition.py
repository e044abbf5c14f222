"""Random tokens that come back: text whose only regularity is that a piece seen before goes on as it did before."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import torch
from torch import Tensor

PIECE_TOKENS = (4, 12)
NUM_PIECES = (4, 12)


def repetitions(rng: Random, num_words: int, num_tokens: int, length: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (tokens int64, weights float32) of about `num_tokens`, each `[num_sequences, length + 1]`.

    A sequence draws again and again from a few pieces of random token ids below `num_words`; what counts are the
    tokens of a piece that was there before, except its first.
    """
    while True:
        rows = [_sequence(rng, num_words, length + 1) for _ in range(max(1, num_tokens // length))]
        yield torch.tensor([tokens for tokens, _ in rows]), torch.tensor([weights for _, weights in rows])


def _sequence(rng: Random, num_words: int, length: int) -> tuple[list[int], list[float]]:
    pieces = [
        [rng.randrange(num_words) for _ in range(rng.randint(*PIECE_TOKENS))]
        for _ in range(rng.randint(*NUM_PIECES))
    ]
    tokens: list[int] = []
    weights: list[float] = []
    seen: set[int] = set()
    while len(tokens) < length:
        chosen = rng.randrange(len(pieces))
        piece = pieces[chosen]
        tokens += piece
        weights += [0.0] + [float(chosen in seen)] * (len(piece) - 1)
        seen.add(chosen)
    return tokens[:length], weights[:length]
