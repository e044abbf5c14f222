"""The transition cache: scores of every pair of neighbouring candidates, and the walk through them."""

from __future__ import annotations

import torch
from torch import Tensor

from dspine_kernels.dispatch import uses_triton
from dspine_kernels.injection import InjectionWeights
from dspine_kernels.transition_cache import reference
from dspine_kernels.transition_cache.reference import Walk

__all__ = ["Walk", "scores", "walk"]


def scores(
    states: Tensor,
    anchors: Tensor,
    candidates: Tensor,
    codes: Tensor,
    lm_head: Tensor,
    weights: InjectionWeights,
    norm_weight: Tensor,
    norm_eps: float,
) -> Tensor:
    """See `reference.scores`; as Triton kernels where nothing is differentiated."""
    arguments = (states, anchors, candidates, codes, lm_head, weights, norm_weight, norm_eps)
    if uses_triton(states) and not torch.is_grad_enabled():
        from dspine_kernels.transition_cache import triton

        return triton.scores(*arguments)
    return reference.scores(*arguments)


def walk(rows: Tensor, candidates: Tensor, temperatures: Tensor, noise: Tensor | None) -> Walk:
    """See `reference.walk`."""
    if uses_triton(rows):
        from dspine_kernels.transition_cache import triton_walk

        return triton_walk.walk(rows, candidates, temperatures, noise)
    return reference.walk(rows, candidates, temperatures, noise)
