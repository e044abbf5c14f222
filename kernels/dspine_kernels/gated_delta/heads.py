"""From raw inputs to the heads of the delta rule: convolution, gates and norms, fp32."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dspine_kernels.gated_delta.layer import Weights

NORM_EPS = 1e-6


class Heads(NamedTuple):
    """Inputs of the delta rule, fp32, key heads kept apart from the G value heads that share them."""

    query: Tensor  # [B, Hk, 1, T, Dk], normalised and scaled
    key: Tensor  # [B, Hk, 1, T, Dk], normalised
    value: Tensor  # [B, Hk, G, T, Dv]
    log_decay: Tensor  # [B, Hk, G, T]
    beta: Tensor  # [B, Hk, G, T]


def convolve(window: Tensor, weight: Tensor) -> Tensor:
    """Depthwise causal convolution and SiLU: `[B, kernel - 1 + T, conv_dim]` to fp32 `[B, T, conv_dim]`."""
    kernel = weight.shape[1]
    num_tokens = window.shape[1] - kernel + 1
    window = window.float()
    taps = weight.float().t().contiguous()  # [kernel, conv_dim]
    out = window[:, :num_tokens] * taps[0]
    for tap in range(1, kernel):
        out = torch.addcmul(out, window[:, tap : tap + num_tokens], taps[tap])
    return F.silu(out)


def convolve_block(window: Tensor, weight: Tensor) -> Tensor:
    """As `convolve`, in fewer steps that read more: faster for a few tokens."""
    kernel = weight.shape[1]
    taps = weight.float().t().contiguous()  # [kernel, conv_dim]
    return F.silu((window.float().unfold(1, kernel, 1).mT * taps).sum(2))


def gates(a: Tensor, b: Tensor, weights: Weights) -> tuple[Tensor, Tensor]:
    """Log decay -exp(A_log) softplus(a + dt_bias) <= 0 and write strength sigmoid(b), both fp32 `[..., Hv]`."""
    log_decay = -weights.A_log.float().exp() * F.softplus(a.float() + weights.dt_bias.float())
    return log_decay, b.float().sigmoid()


def split_heads(mixed: Tensor, log_decay: Tensor, beta: Tensor, weights: Weights) -> Heads:
    """Norm and scale the convolved inputs fp32 `[B, T, conv_dim]`, and lay them and the gates out by head."""
    num_key_heads, key_head_dim = weights.num_key_heads, weights.key_head_dim
    batch, num_tokens, conv_dim = mixed.shape
    query_key_dim = 2 * num_key_heads * key_head_dim
    num_groups = log_decay.shape[2] // num_key_heads
    query_key, value = mixed.split_with_sizes([query_key_dim, conv_dim - query_key_dim], -1)
    query_key = query_key.view(batch, num_tokens, 2, num_key_heads, key_head_dim)
    query, key = l2_normalised(query_key).permute(2, 0, 3, 1, 4).unbind(0)  # each [B, Hk, T, Dk]
    value = value.view(batch, num_tokens, num_key_heads, num_groups, -1).permute(0, 2, 3, 1, 4)
    by_head = (batch, num_tokens, num_key_heads, num_groups)
    return Heads(
        query=(query * key_head_dim**-0.5).unsqueeze(2),
        key=key.unsqueeze(2),
        value=value,
        log_decay=log_decay.view(by_head).permute(0, 2, 3, 1),
        beta=beta.view(by_head).permute(0, 2, 3, 1),
    )


def l2_normalised(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + NORM_EPS)
