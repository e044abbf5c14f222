"""Adjacent injection: each proposal's state receives a gated message from its predecessor."""

from __future__ import annotations

import torch
from torch import Tensor

from dspine_kernels.dispatch import uses_triton
from dspine_kernels.injection.reference import InjectionWeights, inject, receive, transfer_features

__all__ = ["InjectionWeights", "inject", "inject_after_anchors", "receive", "transfer_features"]


def inject_after_anchors(hidden: Tensor, anchors: Tensor, codes: Tensor, weights: InjectionWeights) -> Tensor:
    """`inject` where only the anchors are known; as Triton kernels where nothing is differentiated.

    Args:
        hidden: a layer's output, `[num_blocks, block_size, hidden_size]`.
        anchors: int64 `[num_blocks]`.
        codes: unit rows `[vocab_size, transfer_rank]`.
        weights: the layer's injection.

    Returns:
        `[num_blocks, block_size, hidden_size]`.
    """
    if uses_triton(hidden) and not torch.is_grad_enabled():
        from dspine_kernels.injection import triton

        return triton.inject_after_anchors(hidden, anchors, codes, weights)
    return inject(hidden, codes[anchors].unsqueeze(1), weights)
