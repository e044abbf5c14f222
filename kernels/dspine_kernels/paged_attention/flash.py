"""Wide chunks of prompts by flash-attn, where it is installed.

It takes no pages of 16 tokens, so the keys are gathered first; the wider a chunk, the less that costs beside it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

MIN_WIDTH = 256
"""Query tokens a request from which on gathering pays."""


class GatheredKeys(NamedTuple):
    """Where the keys of all requests are, one request after the other."""

    slots: Tensor  # int64 [sum of keys], page * page_tokens + offset
    starts: Tensor  # int32 [B + 1]: keys of request b are starts[b] .. starts[b + 1] - 1
    max_keys: int  # no request has more


@functools.cache
def is_installed() -> bool:
    return importlib.util.find_spec("flash_attn") is not None


def gather(
    pages: Sequence[Sequence[int]] | npt.NDArray[np.int32],
    num_keys: Sequence[int],
    *,
    page_tokens: int,
    device: torch.device,
) -> GatheredKeys:
    """The first `num_keys` of each request's pages."""
    offsets = np.arange(page_tokens)
    slots = [
        (np.array(own, np.int64)[:, None] * page_tokens + offsets).ravel()[:count]
        for own, count in zip(pages, num_keys, strict=True)
    ]
    starts = np.concatenate(([0], np.cumsum(num_keys))).astype(np.int32)
    return GatheredKeys(
        torch.from_numpy(np.concatenate(slots)).to(device),
        torch.from_numpy(starts).to(device),
        max(num_keys),
    )


def attend(
    query: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    row_starts: Tensor,
    max_width: int,
    keys: GatheredKeys,
    scale: float,
) -> Tensor:
    """As `reference.attend`, in half precision; `row_starts` and `max_width` as in `RaggedPlan`."""
    key, value = (pages.flatten(0, 1).index_select(0, keys.slots) for pages in (key_pages, value_pages))
    out: Tensor = importlib.import_module("flash_attn").flash_attn_varlen_func(
        query,
        key,
        value,
        cu_seqlens_q=row_starts,
        cu_seqlens_k=keys.starts,
        max_seqlen_q=max_width,
        max_seqlen_k=keys.max_keys,
        softmax_scale=scale,
        causal=True,
    )
    return out
