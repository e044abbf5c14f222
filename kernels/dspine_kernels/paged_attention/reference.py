"""Plain torch paged attention; production's path on CPUs.

Names of dimensions: B requests, Hq query heads, Hkv key/value heads, G = Hq / Hkv, D head dim, W query tokens a
request, S key slots a request. A page holds consecutive tokens of one request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from dspine_kernels.ragged_rows import order_of, rows_of, split

PADDED_QUERY_TOKENS = 16
"""Up to this many query tokens a request, the batch is padded and attends at once, those of one token apart from the
others; beyond, request by request."""


class _Mask:
    """What each query sees, in the form that attention adds to its scores: made once for all layers."""

    def __init__(self, visible: Tensor) -> None:
        """`visible` is bool `[B, W, S]`."""
        self._visible = visible
        self._biases: dict[tuple[int, torch.dtype], Tensor] = {}

    def bias(self, num_groups: int, dtype: torch.dtype) -> Tensor:
        """`[B, 1, G * W, S]`: 0 where a key is visible, else minus infinity."""
        key = (num_groups, dtype)
        if key not in self._biases:
            zeros = torch.zeros(self._visible.shape, dtype=dtype, device=self._visible.device)
            bias = zeros.masked_fill_(~self._visible, -torch.inf)
            self._biases[key] = bias.repeat(1, num_groups, 1).unsqueeze(1)
        return self._biases[key]


class _Piece(NamedTuple):
    """Requests that attend at once."""

    rows: slice | Tensor  # of the packed queries
    shape: tuple[int, int]  # B, W
    slots: Tensor  # int64 [B * S], where each request's keys are stored
    mask: _Mask
    padded: Tensor | None  # int64 [B * W], the packed row of each padded one; None where none is padded
    valid: Tensor | None  # bool [B * W]


class Plan(NamedTuple):
    """Where each query finds its keys: the same in every layer of a pass."""

    pieces: list[_Piece]
    order: Tensor | None  # int64 [num_tokens], where each query is among those of the pieces; None: in order


def write(key: Tensor, value: Tensor, key_pages: Tensor, value_pages: Tensor, slots: Tensor) -> None:
    """Store the keys and values of some tokens in their pages, in place.

    Args:
        key, value: `[n, Hkv, D]`.
        key_pages, value_pages: `[num_pages, page_tokens, Hkv, D]`, contiguous.
        slots: int64 `[n]`, page * page_tokens + offset.
    """
    key_pages.view(-1, *key_pages.shape[2:]).index_copy_(0, slots, key)
    value_pages.view(-1, *value_pages.shape[2:]).index_copy_(0, slots, value)


def plan(
    pages: Sequence[Sequence[int]] | npt.NDArray[np.int32],
    query_lengths: Sequence[int],
    context_lengths: Sequence[int],
    *,
    page_tokens: int,
    device: torch.device,
) -> Plan:
    """Plan the attention of a pass.

    Args:
        pages: pages of each request in order, covering its cached tokens and those of this pass; as an array a row
            each, whose further entries may hold anything.
        query_lengths: tokens of each request in this pass.
        context_lengths: cached tokens of each request before this pass.
        device: of the keys.
    """
    lengths, contexts = np.array(query_lengths), np.array(context_lengths)

    def piece(rows: slice | Tensor, requests: npt.NDArray[np.int64]) -> _Piece:
        own_pages = [pages[request] for request in requests.tolist()]
        return _plan_piece(rows, own_pages, lengths[requests], contexts[requests], page_tokens, device)

    requests = np.arange(len(lengths))
    if int(lengths.max()) > PADDED_QUERY_TOKENS:
        ends = lengths.cumsum()
        bounds = zip((ends - lengths).tolist(), ends.tolist(), strict=True)
        return Plan([piece(slice(*own), requests[i : i + 1]) for i, own in enumerate(bounds)], None)
    parts = split(lengths == 1, int(lengths.max()) - 1)
    if parts is None:
        return Plan([piece(slice(0, int(lengths.sum())), requests)], None)
    rows = [rows_of(lengths, part) for part in parts]
    indices = [torch.from_numpy(own).to(device) for own in rows]
    return Plan(
        [piece(index, part) for index, part in zip(indices, parts, strict=True)], order_of(rows, device)
    )


def attend(query: Tensor, key_pages: Tensor, value_pages: Tensor, plan: Plan, scale: float) -> Tensor:
    """Causal attention of the tokens of a pass, whose keys and values are in the pages already.

    Args:
        query: `[num_tokens, Hq, D]`, requests packed one after the other.
        key_pages, value_pages: `[num_pages, page_tokens, Hkv, D]`, contiguous; slots that no request has written may
            hold anything.

    Returns:
        `[num_tokens, Hq, D]`.
    """
    parts = [_attend_piece(query[piece.rows], key_pages, value_pages, piece, scale) for piece in plan.pieces]
    joined = parts[0] if len(parts) == 1 else torch.cat(parts)
    return joined if plan.order is None else joined[plan.order]


def _plan_piece(
    rows: slice | Tensor,
    pages: Sequence[Sequence[int] | npt.NDArray[np.int32]],
    lengths: npt.NDArray[np.int64],
    contexts: npt.NDArray[np.int64],
    page_tokens: int,
    device: torch.device,
) -> _Piece:
    batch, width, total = len(lengths), int(lengths.max()), lengths + contexts
    num_pages = -(-int(total.max()) // page_tokens)
    table = np.zeros((batch, num_pages), np.int64)
    for row, own in zip(table, pages, strict=True):
        row[: len(own)] = own[:num_pages]
    slots = (table[:, :, None] * page_tokens + np.arange(page_tokens)).reshape(batch, -1)  # [B, S]
    positions = np.arange(slots.shape[1])
    # Unwritten slots may hold NaN, which no mask removes: read the request's first slot in their place.
    slots = np.where(positions < total[:, None], slots, slots[:, :1])
    steps = np.arange(width)
    visible = positions <= (contexts[:, None] + steps)[..., None]  # [B, W, S]
    num_rows = int(lengths.sum())
    padded = valid = None
    if num_rows < batch * width:
        is_valid = steps < lengths[:, None]  # [B, W]
        first = lengths.cumsum() - lengths
        padded = torch.from_numpy(np.where(is_valid, first[:, None] + steps, 0).ravel()).to(device)
        valid = torch.from_numpy(is_valid.ravel()).to(device)
    return _Piece(
        rows,
        (batch, width),
        torch.from_numpy(slots.ravel()).to(device),
        _Mask(torch.from_numpy(visible).to(device)),
        padded,
        valid,
    )


def _attend_piece(
    query: Tensor, key_pages: Tensor, value_pages: Tensor, piece: _Piece, scale: float
) -> Tensor:
    (batch, width), (num_heads, head_dim) = piece.shape, query.shape[1:]
    num_kv_heads = key_pages.shape[2]
    num_groups = num_heads // num_kv_heads
    key, value = (
        pages.view(-1, num_kv_heads, head_dim)
        .index_select(0, piece.slots)
        .view(batch, -1, num_kv_heads, head_dim)
        for pages in (key_pages, value_pages)
    )
    if piece.padded is not None:
        query = query[piece.padded]
    # The heads that share keys become rows of one attention, so keys and values need no repeating.
    rows = query.view(batch, width, num_kv_heads, num_groups, head_dim).permute(0, 2, 3, 1, 4).flatten(2, 3)
    out = F.scaled_dot_product_attention(
        rows,
        key.transpose(1, 2),
        value.transpose(1, 2),
        attn_mask=piece.mask.bias(num_groups, query.dtype),
        scale=scale,
    )  # [B, Hkv, G * W, D]
    out = out.view(batch, num_kv_heads, num_groups, width, head_dim).permute(0, 3, 1, 2, 4)
    out = out.reshape(batch * width, num_heads, head_dim)
    return out if piece.valid is None else out[piece.valid]
