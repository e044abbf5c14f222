"""Norm, rotation and storing of heads in plain torch; all but `write` is differentiable.

Names of dimensions: n rows, Hq query heads, Hkv key/value heads, D head dim.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dspine_kernels.paged_attention import reference as paged_attention


class HeadTransform(NamedTuple):
    """What a layer does to the heads of queries and keys: x / rms(x) * scale, then rotation to their positions."""

    query_scale: Tensor  # [D]
    key_scale: Tensor  # [D]
    eps: float
    rounds_before_scale: bool  # to the dtype of x; else the scale, which is fp32, comes first
    cos: Tensor  # [n, 1, rotary_dim / 2]; `sin` alike, both in the dtype of x
    sin: Tensor


def place(query: Tensor, key: Tensor, heads: HeadTransform) -> tuple[Tensor, Tensor]:
    """Norm and rotate projected queries `[n, Hq, D]` and keys `[n, Hkv, D]`."""
    placed_query = rotate(_norm(query, heads.query_scale, heads), heads.cos, heads.sin)
    return placed_query, place_keys(key, heads)


def place_keys(key: Tensor, heads: HeadTransform) -> Tensor:
    """`place` for keys alone, `[n, Hkv, D]`."""
    return rotate(_norm(key, heads.key_scale, heads), heads.cos, heads.sin)


def write(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    heads: HeadTransform,
    key_pages: Tensor,
    value_pages: Tensor,
    slots: Tensor,
) -> Tensor:
    """Norm and rotate queries and keys, and store keys and values in their pages, in place.

    Args:
        query: projected, `[n, Hq, D]`.
        key: projected, `[n, Hkv, D]`; `value` alike.
        value: see `key`.
        heads: the layer's.
        key_pages: `[num_pages, page_tokens, Hkv, D]`, contiguous; `value_pages` alike.
        value_pages: see `key_pages`.
        slots: int64 `[m]`, m <= n, page * page_tokens + offset of the first m rows; the others are not stored.

    Returns:
        The queries, `[n, Hq, D]`.
    """
    query, key = place(query, key, heads)
    num_stored = len(slots)
    paged_attention.write(key[:num_stored], value[:num_stored], key_pages, value_pages, slots)
    return query


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate (half-split) the first `rotary_dim` of every head of `[n, num_heads, D]`; angles as in `HeadTransform`."""
    half = cos.shape[-1]
    first, second, rest = x.split_with_sizes([half, half, x.shape[-1] - 2 * half], -1)
    turned = (first * cos - second * sin, second * cos + first * sin)
    return torch.cat((*turned, rest), -1)


def _norm(x: Tensor, scale: Tensor, heads: HeadTransform) -> Tensor:
    if heads.rounds_before_scale:
        return scale * F.rms_norm(x.float(), scale.shape, None, heads.eps).to(x.dtype)
    return F.rms_norm(x.float(), scale.shape, scale, heads.eps).to(x.dtype)
