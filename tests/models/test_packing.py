from __future__ import annotations

import pytest
import torch

from dspine_cluster.models.cache import SequenceCache
from dspine_cluster.models.config import parse_target_config
from dspine_cluster.models.packing import pack_weights
from tests.models.test_config import HYBRID
from tests.random_targets import build_target
from tests.verifier.harness import dense_config

CONFIGS = {
    "hybrid": parse_target_config(HYBRID),
    "dense": dense_config(),
    "biased": parse_target_config({**HYBRID, "attention_bias": True}),
    "tied": parse_target_config({**HYBRID, "tie_word_embeddings": True}),
}


@torch.no_grad()
@pytest.mark.parametrize("kind", CONFIGS)
def test_a_packed_model_gives_the_numbers_it_gave(kind: str) -> None:
    model = build_target(CONFIGS[kind], seed=0, std=0.1)
    for name, parameter in model.named_parameters():
        if name.endswith(".bias"):
            parameter.normal_()
    tokens = torch.arange(40)

    def logits() -> torch.Tensor:
        return model.logits(model(tokens, torch.arange(40), SequenceCache(1, 40)).hidden)

    wanted = logits()
    pack_weights(model)
    assert (logits() - wanted).abs().max() < 1e-4


@pytest.mark.parametrize("kind", CONFIGS)
def test_packing_changes_no_name_shape_or_value_of_a_state_dict(kind: str) -> None:
    packed = build_target(CONFIGS[kind], seed=0)
    wanted = {name: tensor.clone() for name, tensor in packed.state_dict().items()}
    pack_weights(packed)
    assert packed.state_dict().keys() == wanted.keys()
    for name, tensor in packed.state_dict().items():
        assert torch.equal(tensor, wanted[name]), name


def test_packed_weights_are_not_held_twice() -> None:
    model = build_target(CONFIGS["hybrid"], seed=0)
    pack_weights(model)
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in model.state_dict().values()}
    assert sum(storage.nbytes() for storage in storages.values()) == sum(
        tensor.nbytes for tensor in model.state_dict().values()
    )
