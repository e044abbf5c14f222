"""A target's layers split over ranks: each holds some heads and some MLP channels, and sums join what they compute.

Split by output: `q_proj`, `k_proj`, `v_proj`, `gate_proj`, `up_proj` and what Gated DeltaNet computes for each head.
Split by input: `o_proj`, `out_proj`, `down_proj`, whose partial results are summed over all ranks. Embedding, norms of
the hidden size and head are whole on every rank, so hidden states are the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from dspine_cluster.errors import ConfigError
from dspine_cluster.models.config import GatedDeltaConfig, TargetConfig
from dspine_cluster.models.target import TargetModel

Reduce = Callable[[Tensor], None]
"""Replaces a tensor by its sum over all ranks, in place."""

_BY_OUTPUT = frozenset(
    ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "in_proj_z", "in_proj_a", "in_proj_b")
)
_BY_INPUT = frozenset(("o_proj", "out_proj", "down_proj"))
_BY_SECTION = frozenset(("in_proj_qkv", "conv1d"))
_BY_HEAD = frozenset(("A_log", "dt_bias"))


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank's part of a target."""

    rank: int
    num_ranks: int


WHOLE = Shard(0, 1)


def shard_config(config: TargetConfig, num_ranks: int) -> TargetConfig:
    """The config of one rank's part: heads and MLP channels are divided.

    Raises:
        ConfigError: some count is not divisible; the message names it.
    """

    def share(name: str, count: int) -> int:
        if count % num_ranks:
            raise ConfigError(f"tensor_parallel {num_ranks} does not divide the target's {name} {count}")
        return count // num_ranks

    delta = config.gated_delta
    return replace(
        config,
        num_heads=share("num_attention_heads", config.num_heads),
        num_kv_heads=share("num_key_value_heads", config.num_kv_heads),
        intermediate_size=share("intermediate_size", config.intermediate_size),
        gated_delta=None
        if delta is None
        else replace(
            delta,
            num_key_heads=share("linear_num_key_heads", delta.num_key_heads),
            num_value_heads=share("linear_num_value_heads", delta.num_value_heads),
        ),
    )


def shard_tensor(name: str, tensor: Tensor, config: TargetConfig, shard: Shard) -> Tensor:
    """A rank's part of a tensor of the whole target of `config`, as a view where it can be; `name` is the model's."""
    if shard.num_ranks == 1:
        return tensor
    *_, module, kind = ("", *name.split("."))
    if module in _BY_OUTPUT or kind in _BY_HEAD:
        return tensor.chunk(shard.num_ranks)[shard.rank]
    if module in _BY_SECTION:
        assert config.gated_delta is not None
        return _of_sections(tensor, config.gated_delta, shard)
    if module not in _BY_INPUT:
        return tensor
    if kind == "bias":  # it is added once
        return tensor if shard.rank == 0 else torch.zeros_like(tensor)
    return tensor.chunk(shard.num_ranks, 1)[shard.rank]


def sum_over_ranks(model: TargetModel, reduce: Reduce) -> None:
    """Have `reduce` join what the layers of a rank's part compute. The model's weights may still be unset."""
    for module in model.modules():
        for name, child in module.named_children():
            if name in _BY_INPUT and isinstance(child, nn.Linear):
                setattr(module, name, _SummedLinear(child, reduce))


class _SummedLinear(nn.Linear):
    """A linear map of which every rank has some input columns."""

    def __init__(self, linear: nn.Linear, reduce: Reduce) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self._reduce = reduce

    def forward(self, x: Tensor) -> Tensor:
        partial = super().forward(x)
        self._reduce(partial)
        return partial


def _of_sections(tensor: Tensor, delta: GatedDeltaConfig, shard: Shard) -> Tensor:
    """Of rows [query | key | value], the rank's heads of each."""
    sections = tensor.split_with_sizes([delta.key_dim, delta.key_dim, delta.value_dim])
    return torch.cat([section.chunk(shard.num_ranks)[shard.rank] for section in sections])
