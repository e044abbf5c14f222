from __future__ import annotations

from itertools import pairwise
from random import Random

from dspine_cluster.miniature.data.repetition import repetitions


def test_what_counts_has_been_seen_after_the_same_token_before() -> None:
    stream = repetitions(Random(1), 100_000, 512, 128)
    for _ in range(5):
        tokens, weights = next(stream)
        for row, counted in zip(tokens.tolist(), weights.tolist(), strict=True):
            pairs = list(pairwise(row))
            for i, weight in enumerate(counted[1:]):
                if weight:
                    assert pairs[i] in pairs[:i]


def test_most_tokens_count() -> None:
    _, weights = next(repetitions(Random(2), 3000, 4096, 256))
    assert 0.4 < weights.mean().item() < 0.95


def test_ids_stay_below_the_given_number() -> None:
    tokens, _ = next(repetitions(Random(3), 50, 512, 128))
    assert tokens.shape == (4, 129)
    assert 0 <= tokens.min().item() <= tokens.max().item() < 50
