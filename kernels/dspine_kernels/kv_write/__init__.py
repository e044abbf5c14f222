"""What happens to projected queries, keys and values before they attend: head norms, rotation, storing in pages."""

from __future__ import annotations

from torch import Tensor

from dspine_kernels.dispatch import uses_triton
from dspine_kernels.kv_write import reference
from dspine_kernels.kv_write.reference import HeadTransform, rotate

__all__ = ["HeadTransform", "place", "place_keys", "rotate", "write"]


def place(query: Tensor, key: Tensor, heads: HeadTransform) -> tuple[Tensor, Tensor]:
    """As `reference.place`, which runs wherever gradients are wanted."""
    if uses_triton(key) and not key.requires_grad:
        from dspine_kernels.kv_write import triton

        return triton.place(query, key, heads)
    return reference.place(query, key, heads)


def place_keys(key: Tensor, heads: HeadTransform) -> Tensor:
    """As `reference.place_keys`, which runs wherever gradients are wanted."""
    if uses_triton(key) and not key.requires_grad:
        from dspine_kernels.kv_write import triton

        return triton.place_keys(key, heads)
    return reference.place_keys(key, heads)


def write(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    heads: HeadTransform,
    key_pages: Tensor,
    value_pages: Tensor,
    slots: Tensor,
) -> Tensor:
    """As `reference.write`. On GPUs a row whose slot is negative is not stored."""
    if uses_triton(key):
        from dspine_kernels.kv_write import triton

        return triton.write(query, key, value, heads, key_pages, value_pages, slots)
    return reference.write(query, key, value, heads, key_pages, value_pages, slots)
