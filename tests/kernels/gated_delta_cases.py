"""Random Gated DeltaNet layers, their inputs, and transformers' recurrent form of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.qwen3_5 import modeling_qwen3_5 as hf

from dspine_kernels import gated_delta
from dspine_kernels.gated_delta import Inputs, Weights

KERNEL = 4
Result = tuple[Tensor, Tensor, Tensor]
"""Output `[B, T, Hv, Dv]`, state, convolution state."""


@dataclass(frozen=True)
class Layer:
    """A random layer."""

    weights: Weights
    value_head_dim: int

    def prefill(
        self, raw: Inputs, past: tuple[Tensor, Tensor] | None = None, lengths: Tensor | None = None
    ) -> Result:
        state, conv_state = past or (None, None)
        return gated_delta.prefill(raw, self.weights, state=state, conv_state=conv_state, lengths=lengths)

    def verify(
        self, raw: Inputs, past: tuple[Tensor, Tensor], pending: Inputs, num_pending: list[int]
    ) -> Result:
        return gated_delta.verify(
            raw,
            self.weights,
            state=past[0],
            conv_state=past[1],
            pending=pending,
            num_pending=torch.tensor(num_pending),
        )

    def decode(self, raw: Inputs, past: tuple[Tensor, Tensor]) -> Tensor:
        now = raw.map(lambda x: x[:, 0])
        return gated_delta.decode(now, self.weights, state=past[0], conv_state=past[1])

    def step(self, raw: Inputs) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """transformers' recurrent form over one request: output, and the two states before token 0, 1, ..., T."""
        mixed_qkv, a, b = raw
        conv_weight, A_log, dt_bias, num_key_heads, key_head_dim = self.weights
        mixed = hf.causal_conv1d_fn(mixed_qkv.mT, conv_weight, None, activation="silu").mT
        key_dim = num_key_heads * key_head_dim
        query, key, value = torch.split(mixed, [key_dim, key_dim, mixed.shape[-1] - 2 * key_dim], -1)
        log_decay, beta = -A_log.exp() * F.softplus(a + dt_bias), b.sigmoid()
        states = [mixed.new_zeros(1, len(A_log), key_head_dim, self.value_head_dim)]
        outs = []
        for token in range(mixed.shape[1]):
            now = slice(token, token + 1)
            out, state = hf.torch_recurrent_gated_delta_rule(
                query[:, now].view(1, 1, -1, key_head_dim),
                key[:, now].view(1, 1, -1, key_head_dim),
                value[:, now].view(1, 1, -1, self.value_head_dim),
                g=log_decay[:, now],
                beta=beta[:, now],
                initial_state=states[-1],
                output_final_state=True,
                use_qk_l2norm_in_kernel=True,
            )
            outs.append(out)
            states.append(state)
        raw_past = F.pad(mixed_qkv, (0, 0, KERNEL - 1, 0))
        return torch.cat(outs, 1), states, [raw_past[:, t : t + KERNEL - 1] for t in range(len(states))]


def make_layer(
    num_tokens: int, seed: int, heads: tuple[int, int] = (2, 6), dims: tuple[int, int] = (16, 8)
) -> tuple[Layer, Inputs]:
    """A layer and one request's raw inputs."""
    random = torch.Generator().manual_seed(seed)
    conv_dim = 2 * heads[0] * dims[0] + heads[1] * dims[1]

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random)

    conv_weight, A_log, dt_bias = normal(conv_dim, KERNEL) * 0.5, normal(heads[1]), normal(heads[1])
    return Layer(Weights(conv_weight, A_log, dt_bias, heads[0], dims[0]), dims[1]), Inputs(
        normal(1, num_tokens, conv_dim),
        normal(1, num_tokens, heads[1]),
        normal(1, num_tokens, heads[1]),
    )


def span(raw: Inputs, start: int, end: int) -> Inputs:
    return raw.map(lambda x: x[:, start:end])


def error(left: Tensor, right: Tensor) -> float:
    assert left.shape == right.shape
    return float((left - right).detach().abs().max())
