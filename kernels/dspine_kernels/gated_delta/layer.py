"""What a Gated DeltaNet layer gives its recurrence.

Names of dimensions, here and in the neighbouring modules: B requests, T tokens, Hk key heads, Hv value heads,
G = Hv / Hk value heads a key head, Dk and Dv head dims, P pending inputs a request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor


class Inputs(NamedTuple):
    """Raw, so that a pass can be replayed from what it was given; leading dimensions as said at each use."""

    mixed_qkv: Tensor  # [..., 2 * Hk * Dk + Hv * Dv], [query | key | value] before the convolution
    a: Tensor  # [..., Hv], before its gate: decay
    b: Tensor  # [..., Hv], before its gate: write strength

    def map(self, change: Callable[[Tensor], Tensor]) -> Inputs:
        """The same change of all three."""
        return Inputs(change(self.mixed_qkv), change(self.a), change(self.b))


class Weights(NamedTuple):
    """The weights that act inside the recurrence."""

    conv_weight: Tensor  # [conv_dim, kernel], depthwise
    A_log: Tensor  # [Hv]
    dt_bias: Tensor  # [Hv]
    num_key_heads: int
    key_head_dim: int


class States(NamedTuple):
    """A layer's pools, one slot a request: the past up to the last anchor, and the proposals of the last block."""

    state: Tensor  # fp32 [num_slots, Hv, Dk, Dv]
    conv_state: Tensor  # [num_slots, kernel - 1, conv_dim], the raw inputs before the next token
    pending: Inputs  # [num_slots, P, ...]
