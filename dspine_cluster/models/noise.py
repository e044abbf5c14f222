"""Counter-based noise: a number is a function of (seed, output position, token id) and of nothing else.

The verifier and the drafter add the same Gumbel noise to their log-probabilities, so that seeded sampling
yields the same text whatever was drafted, batched or resumed elsewhere.
"""

from __future__ import annotations

import torch
from torch import Tensor

_INT64_RANGE = 1 << 64


def _signed(value: int) -> int:
    """The int64 with the same 64 bits as the unsigned `value`."""
    return value - _INT64_RANGE if value >= _INT64_RANGE >> 1 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MULTIPLIER_1 = _signed(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = _signed(0x94D049BB133111EB)
_MANTISSA_BITS = 52


def gumbel(seeds: Tensor, output_indices: Tensor, token_ids: Tensor) -> Tensor:
    """Standard Gumbel noise for each (seed, output position, token id).

    Arguments: int64 tensors of shapes that broadcast together. Returns finite float64 of the broadcast shape.
    The bits come from splitmix64 (Steele, Lea and Flood, 2014): (seed, position) is hashed to a stream, of
    which the token id picks the element. Arithmetic is 64-bit and wrapping, hence the same on every device
    and in every batch.
    """
    for name, tensor in (("seeds", seeds), ("output_indices", output_indices), ("token_ids", token_ids)):
        assert tensor.dtype == torch.int64, f"{name} must be int64, not {tensor.dtype}"
    streams = _mix(_mix(seeds + _GOLDEN) ^ (output_indices * _GOLDEN))
    bits = _mix(streams + (token_ids + 1) * _GOLDEN)
    # 52 bits and a half keep the uniform strictly inside (0, 1), where both logarithms are finite.
    uniform = _shift_right(bits, 64 - _MANTISSA_BITS).double().add_(0.5).mul_(2.0**-_MANTISSA_BITS)
    return uniform.log_().neg_().log_().neg_()


def _mix(state: Tensor) -> Tensor:
    """The output function of splitmix64, a bijection of 64-bit integers."""
    state = _shift_right(state, 30).bitwise_xor_(state).mul_(_MULTIPLIER_1)
    state = _shift_right(state, 27).bitwise_xor_(state).mul_(_MULTIPLIER_2)
    return _shift_right(state, 31).bitwise_xor_(state)


def _shift_right(state: Tensor, num_bits: int) -> Tensor:
    """A logical shift; that of int64 tensors copies the sign bit."""
    return (state >> num_bits).bitwise_and_((1 << (64 - num_bits)) - 1)
