"""The chunk form as flash-linear-attention computes it on GPUs, where that package is installed."""

from __future__ import annotations

import functools
import importlib
import importlib.util

import torch
from torch import Tensor

from dspine_kernels.gated_delta.heads import Heads


def serves(activations: Tensor) -> bool:
    """Whether it is installed and takes activations like these: it computes in two bytes a number, on GPUs."""
    return activations.is_cuda and activations.dtype.itemsize == 2 and _is_installed()


def chunked(heads: Heads, state: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """As `chunk_form.chunked`, with queries, keys and values rounded to `dtype`."""
    run = importlib.import_module("fla.ops.gated_delta_rule").chunk_gated_delta_rule
    num_groups = heads.value.shape[2]
    out, new_state = run(
        _by_token(heads.query.expand(-1, -1, num_groups, -1, -1)).to(dtype),
        _by_token(heads.key.expand(-1, -1, num_groups, -1, -1)).to(dtype),
        _by_token(heads.value).to(dtype),
        g=_by_token(heads.log_decay),
        beta=_by_token(heads.beta),
        scale=1.0,  # the queries have theirs
        initial_state=state,
        output_final_state=True,
    )
    return out, new_state


def _by_token(x: Tensor) -> Tensor:
    """`[B, Hk, G, T, ...]` to `[B, T, Hv, ...]`, contiguous."""
    return x.flatten(1, 2).transpose(1, 2).contiguous()


@functools.cache
def _is_installed() -> bool:
    return importlib.util.find_spec("fla") is not None
