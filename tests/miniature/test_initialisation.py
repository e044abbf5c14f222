from __future__ import annotations

from random import Random

import pytest
import torch

from dspine_cluster import miniature
from dspine_cluster.miniature.settings import Settings
from dspine_cluster.miniature.target_training import new_target
from dspine_cluster.models.cache import SequenceCache
from dspine_cluster.models.target import TargetModel


@pytest.fixture(scope="module")
def fresh() -> TargetModel:
    return new_target(Settings(), miniature.folder("target")).requires_grad_(False)


def ranks_of_the_next(model: TargetModel, tokens: list[int]) -> torch.Tensor:
    """How many tokens an untrained target finds likelier than the true next one, at each position."""
    count = len(tokens) - 1
    out = model(torch.tensor(tokens[:-1]), torch.arange(count), SequenceCache(1, count))
    logits = model.logits(out.hidden)
    return (logits > logits.gather(1, torch.tensor(tokens[1:])[:, None])).sum(1)


def test_an_untrained_target_already_looks_back_for_what_came_next(fresh: TargetModel) -> None:
    rng = Random(3)
    words = rng.sample(range(3000), k=60)
    ranks = ranks_of_the_next(fresh, words * 3)
    first, again = ranks[:58], ranks[61:]
    assert again.float().median() < 0.05 * fresh.config.vocab_size
    assert first.float().median() > 0.25 * fresh.config.vocab_size


def test_embedding_and_head_are_one_parameter(fresh: TargetModel) -> None:
    assert fresh.lm_head_weight is fresh.embedding_weight


def test_the_untrained_target_is_the_same_every_time(fresh: TargetModel) -> None:
    again = new_target(Settings(), miniature.folder("target"))
    assert all(torch.equal(a, b) for a, b in zip(fresh.parameters(), again.parameters(), strict=True))
