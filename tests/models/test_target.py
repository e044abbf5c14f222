from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dspine_cluster.models.architecture import make_target
from dspine_cluster.models.cache import SequenceCache
from dspine_cluster.models.config import parse_target_config
from dspine_cluster.models.target import TargetModel
from tests.models.hf_models import hf_qwen3, hf_qwen3_5, random_tokens
from tests.models.test_config import HYBRID
from tests.random_targets import build_target


def run(
    model: TargetModel, tokens: Tensor, tapped_layers: tuple[int, ...] = ()
) -> tuple[Tensor, Tensor | None]:
    output = model(tokens, torch.arange(len(tokens)), SequenceCache(1, len(tokens)), tapped_layers)
    return output.hidden, output.taps


@pytest.mark.parametrize("make_reference", [hf_qwen3, hf_qwen3_5])
@torch.no_grad()
def test_taps_are_what_each_layer_of_transformers_gives_even_the_last(make_reference: object) -> None:
    assert callable(make_reference)
    reference = make_reference()
    model = make_target(parse_target_config(reference.config.to_dict()))
    model.load_state_dict(reference.state_dict())
    last = model.config.num_layers - 1
    given: dict[int, Tensor] = {}
    for number in (0, last):
        layer: nn.Module = reference.model.layers[number]
        layer.register_forward_hook(lambda _m, _i, out, number=number: given.update({number: out}))
    (tokens,) = random_tokens(30)
    reference(tokens[None])
    _, taps = run(model, tokens, (last, 0))
    assert taps is not None
    wanted = torch.cat((given[last][0], given[0][0]), -1)
    assert (taps - wanted).abs().max() < 1e-4


@torch.no_grad()
def test_tapping_changes_no_output() -> None:
    model = build_target(parse_target_config(HYBRID), seed=0)
    (tokens,) = random_tokens(20)
    assert torch.equal(run(model, tokens)[0], run(model, tokens, (1, 3))[0])


@torch.no_grad()
def test_logits_are_float32_in_a_bfloat16_model() -> None:
    model = build_target(parse_target_config(HYBRID), seed=0).bfloat16()
    hidden, _ = run(model, random_tokens(5)[0])
    assert hidden.dtype == torch.bfloat16
    assert model.logits(hidden).dtype == torch.float32


def test_a_tied_head_is_the_embedding() -> None:
    model = build_target(parse_target_config({**HYBRID, "tie_word_embeddings": True}), seed=0)
    assert model.lm_head_weight is model.embedding_weight
    assert "lm_head.weight" not in model.state_dict()
