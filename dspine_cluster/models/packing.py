"""Weights laid out for inference: what reads one input is one product, and what no input changes is computed once."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@runtime_checkable
class Packable(Protocol):
    """A module that computes from its own parameters."""

    def pack(self) -> None:
        """Compute, once and for all, what depends on them alone."""
        ...


class Projections:
    """Linear maps of one input, which `pack` makes one product."""

    def __init__(self, *linears: nn.Linear) -> None:
        self._linears = linears
        self._sizes = [linear.out_features for linear in linears]
        self._weight: Tensor | None = None  # [sum of sizes, in_features]
        self._bias: Tensor | None = None  # [sum of sizes]

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        """`[num_rows, in_features]` to `[num_rows, size]` of each map, not contiguous once packed."""
        if self._weight is None:
            return tuple(linear(x) for linear in self._linears)
        return F.linear(x, self._weight, self._bias).split_with_sizes(self._sizes, -1)

    def pack(self) -> None:
        """Lay the weights side by side; those of the single maps become views."""
        self._weight = _by_columns(torch.cat(tuple(linear.weight for linear in self._linears)))
        for linear, part in zip(self._linears, torch.split(self._weight, self._sizes), strict=True):
            linear.weight = nn.Parameter(part, requires_grad=False)
        biases = tuple(linear.bias for linear in self._linears if linear.bias is not None)
        self._bias = torch.cat(biases) if biases else None


@torch.no_grad()
def pack_weights(model: nn.Module) -> None:
    """Lay out a loaded model's weights for inference, in place; its `state_dict` keeps names, shapes and values.

    Not to be moved, cast or trained afterwards: the products would not follow.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight = nn.Parameter(_by_columns(module.weight), requires_grad=False)
    for module in model.modules():
        projections = getattr(module, "projections", None)
        if isinstance(projections, Projections):
            projections.pack()
        if isinstance(module, Packable):
            module.pack()


def _by_columns(weight: Tensor) -> Tensor:
    """The same matrix, stored by columns on CPUs, which multiply a few rows by it in less time."""
    return weight.t().contiguous().t() if weight.is_cpu else weight
