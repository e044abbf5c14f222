"""What a layer sees of the past, and the cache that has none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from dspine_cluster.models.config import GatedDeltaConfig
from dspine_kernels import gated_delta


@dataclass(frozen=True, slots=True, eq=False)
class GatedDeltaWeights:
    """The weights of a Gated DeltaNet layer that act inside the recurrence."""

    conv_weight: Tensor  # [conv_dim, conv_kernel]
    A_log: Tensor  # [num_value_heads]
    dt_bias: Tensor  # [num_value_heads]
    config: GatedDeltaConfig

    def prefill(
        self,
        mixed_qkv: Tensor,
        a: Tensor,
        b: Tensor,
        *,
        state: Tensor | None = None,
        conv_state: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`dspine_kernels.gated_delta.prefill` with these weights."""
        return gated_delta.prefill(
            mixed_qkv,
            a,
            b,
            self.conv_weight,
            self.A_log,
            self.dt_bias,
            num_key_heads=self.config.num_key_heads,
            key_head_dim=self.config.key_head_dim,
            state=state,
            conv_state=conv_state,
            lengths=lengths,
        )

    def decode(self, mixed_qkv: Tensor, a: Tensor, b: Tensor, *, state: Tensor, conv_state: Tensor) -> Tensor:
        """`dspine_kernels.gated_delta.decode` with these weights."""
        return gated_delta.decode(
            mixed_qkv,
            a,
            b,
            self.conv_weight,
            self.A_log,
            self.dt_bias,
            num_key_heads=self.config.num_key_heads,
            key_head_dim=self.config.key_head_dim,
            state=state,
            conv_state=conv_state,
        )

    def verify(
        self,
        mixed_qkv: Tensor,
        a: Tensor,
        b: Tensor,
        *,
        state: Tensor,
        conv_state: Tensor,
        pending_qkv: Tensor,
        pending_a: Tensor,
        pending_b: Tensor,
        num_pending: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`dspine_kernels.gated_delta.verify` with these weights."""
        return gated_delta.verify(
            mixed_qkv,
            a,
            b,
            self.conv_weight,
            self.A_log,
            self.dt_bias,
            num_key_heads=self.config.num_key_heads,
            key_head_dim=self.config.key_head_dim,
            state=state,
            conv_state=conv_state,
            pending_qkv=pending_qkv,
            pending_a=pending_a,
            pending_b=pending_b,
            num_pending=num_pending,
        )


class Cache(Protocol):
    """What a layer sees of the past. `layer` counts layers of its own kind only, from 0."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Causal attention over each request's cached tokens and the earlier tokens of this pass.

        Args:
            query: `[num_tokens, num_heads, head_dim]`, normed and rotated.
            key, value: `[num_tokens, num_kv_heads, head_dim]`, the key normed and rotated.

        Returns:
            `[num_tokens, num_heads, head_dim]`; scores are scaled by `head_dim ** -0.5`.
        """
        ...

    def gated_delta(
        self, layer: int, mixed_qkv: Tensor, a: Tensor, b: Tensor, weights: GatedDeltaWeights
    ) -> Tensor:
        """Convolution, gates and delta rule over each request's state and the earlier tokens of this pass.

        Args:
            mixed_qkv: `[num_tokens, conv_dim]`, before the convolution.
            a, b: `[num_tokens, num_value_heads]`, before their gates.

        Returns:
            `[num_tokens, num_value_heads, value_head_dim]`.
        """
        ...


class SequenceCache:
    """Equal-length sequences packed row-major, each from an empty past. Keeps nothing, so it is differentiable."""

    def __init__(self, num_sequences: int, length: int) -> None:
        self.num_sequences = num_sequences
        self.length = length

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        q, k, v = (self._unpack(x).transpose(1, 2) for x in (query, key, value))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        return out.transpose(1, 2).reshape_as(query)

    def gated_delta(
        self, layer: int, mixed_qkv: Tensor, a: Tensor, b: Tensor, weights: GatedDeltaWeights
    ) -> Tensor:
        out, _, _ = weights.prefill(self._unpack(mixed_qkv), self._unpack(a), self._unpack(b))
        return out.flatten(0, 1)

    def _unpack(self, x: Tensor) -> Tensor:
        return x.view(self.num_sequences, self.length, *x.shape[1:])
