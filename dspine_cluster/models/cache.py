"""What a layer sees of the past, and the cache that has none."""

from __future__ import annotations

from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from dspine_kernels import gated_delta, kv_write
from dspine_kernels.gated_delta import Inputs, Weights
from dspine_kernels.kv_write import HeadTransform


class Cache(Protocol):
    """What a layer sees of the past. `layer` counts layers of its own kind only, from 0."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, heads: HeadTransform) -> Tensor:
        """Causal attention over each request's cached tokens and the earlier tokens of this pass.

        Args:
            query: `[num_tokens, num_heads, head_dim]`, as projected.
            key, value: `[num_tokens, num_kv_heads, head_dim]`, as projected.
            heads: norms and rotates queries and keys before they meet.

        Returns:
            `[num_tokens, num_heads, head_dim]`; scores are scaled by `head_dim ** -0.5`.
        """
        ...

    def gated_delta(self, layer: int, inputs: Inputs, weights: Weights) -> Tensor:
        """Convolution, gates and delta rule over each request's state and the earlier tokens of this pass.

        Args:
            inputs: `[num_tokens, ...]`.
            weights: the layer's.

        Returns:
            `[num_tokens, num_value_heads, value_head_dim]`.
        """
        ...


class SequenceCache:
    """Equal-length sequences packed row-major, each from an empty past. Keeps nothing, so it is differentiable."""

    def __init__(self, num_sequences: int, length: int) -> None:
        self.num_sequences = num_sequences
        self.length = length

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, heads: HeadTransform) -> Tensor:
        query, key = kv_write.place(query, key, heads)
        q, k, v = (self._unpack(x).transpose(1, 2) for x in (query, key, value))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        return out.transpose(1, 2).reshape_as(query)

    def gated_delta(self, layer: int, inputs: Inputs, weights: Weights) -> Tensor:
        out, _, _ = gated_delta.prefill(inputs.map(self._unpack), weights)
        return out.flatten(0, 1)

    def _unpack(self, x: Tensor) -> Tensor:
        return x.view(self.num_sequences, self.length, *x.shape[1:])
