"""A target split over ranks: the parts of every layer add up to the whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dspine_cluster.errors import ConfigError
from dspine_cluster.models.cache import SequenceCache
from dspine_cluster.models.config import TargetConfig
from dspine_cluster.models.layers import Rotary
from dspine_cluster.models.sharding import Shard, shard_config
from dspine_cluster.models.target import TargetModel
from dspine_cluster.models.weights import load_target, save_target
from tests.random_targets import build_target
from tests.verifier.harness import dense_config, hybrid_config

NUM_RANKS = 2
LENGTH = 21


def whole_config(architecture: str) -> TargetConfig:
    config = hybrid_config() if architecture == "hybrid" else dense_config()
    delta = config.gated_delta and replace(config.gated_delta, num_key_heads=2, num_value_heads=6)
    return replace(config, num_heads=8, num_kv_heads=2, gated_delta=delta, attention_bias=delta is None)


def load(folder: Path, shard: Shard) -> TargetModel:
    return load_target(folder, dtype=torch.float32, device=torch.device("cpu"), shard=shard)


@pytest.fixture(params=["hybrid", "dense"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    model = build_target(whole_config(request.param), seed=3, std=0.3)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    save_target(model, tmp_path, dtype=torch.float32)
    return tmp_path


def run(model: TargetModel, part: nn.Module, hidden: Tensor) -> Tensor:
    config = model.config
    rotary = Rotary.at(torch.arange(LENGTH), config.rotary_dim, config.rope_theta, hidden.dtype)
    cache = SequenceCache(1, LENGTH)
    name = type(part).__name__
    arguments = {"MLP": (), "GatedDeltaNet": (cache,)}.get(name, (rotary, cache))
    out: Tensor = part(hidden, *arguments)
    return out


@torch.inference_mode()
def test_the_parts_of_every_layer_add_up_to_the_whole(folder: Path) -> None:
    whole = load(folder, Shard(0, 1))
    ranks = [load(folder, Shard(rank, NUM_RANKS)) for rank in range(NUM_RANKS)]
    hidden = torch.randn(LENGTH, whole.config.hidden_size, generator=torch.Generator().manual_seed(1))
    for number, layer in enumerate(whole.model.layers):
        for name in ("self_attn", "linear_attn", "mlp"):
            if not hasattr(layer, name):
                continue
            own = [getattr(rank.model.layers[number], name) for rank in ranks]
            parts = [run(rank, part, hidden) for rank, part in zip(ranks, own, strict=True)]
            expected = run(whole, getattr(layer, name), hidden)
            assert (sum(parts, torch.zeros(())) - expected).abs().max() < 1e-5 * expected.abs().max() + 1e-5
            assert all((part - expected).abs().max() > 1e-2 for part in parts)


def test_the_ranks_hold_every_split_weight_once(folder: Path) -> None:
    whole = load(folder, Shard(0, 1)).state_dict()
    ranks = [load(folder, Shard(rank, NUM_RANKS)).state_dict() for rank in range(NUM_RANKS)]
    for name, tensor in whole.items():
        sizes = {rank[name].numel() for rank in ranks}
        assert sizes in ({tensor.numel()}, {tensor.numel() // NUM_RANKS}), name
    assert any(ranks[0][name].numel() < whole[name].numel() for name in whole)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"num_heads": 9, "num_kv_heads": 3}, "num_attention_heads 9"),
        ({"num_kv_heads": 1}, "num_key_value_heads 1"),
        ({"intermediate_size": 65}, "intermediate_size 65"),
    ],
)
def test_counts_that_do_not_divide_are_refused_by_name(change: dict[str, int], name: str) -> None:
    config = replace(whole_config("dense"), **change)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"tensor_parallel 2 does not divide .*{name}"):
        shard_config(config, NUM_RANKS)
