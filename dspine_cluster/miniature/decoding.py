"""Batched sampling from the target with a dense cache: simple, and fast enough to write the drafters' training text."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dspine_cluster.models.config import TargetConfig
from dspine_cluster.models.target import TargetModel
from dspine_kernels import gated_delta, kv_write
from dspine_kernels.gated_delta import Inputs, Weights
from dspine_kernels.kv_write import HeadTransform

COMPACT_BELOW = 0.75
"""Finished rows are dropped once the running ones are less than this share."""


class DenseCache:
    """K/V and recurrent state of a batch of rows, each with its own length; rows of a pass are equally wide."""

    def __init__(self, config: TargetConfig, num_rows: int, max_tokens: int) -> None:
        shape = (config.num_attention_layers, num_rows, config.num_kv_heads, max_tokens, config.head_dim)
        self.keys = torch.zeros(shape)
        self.values = torch.zeros(shape)
        self.states: list[Tensor | None] = [None] * config.num_gated_delta_layers
        self.conv_states: list[Tensor | None] = [None] * config.num_gated_delta_layers
        self.lengths = torch.zeros(num_rows, dtype=torch.int64)
        self.widths = torch.ones(num_rows, dtype=torch.int64)
        """Valid tokens of each row in the pass to come; the rest is padding on the right."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, heads: HeadTransform) -> Tensor:
        query, key = kv_write.place(query, key, heads)
        num_rows = self.lengths.shape[0]
        q, k, v = (x.view(num_rows, -1, *x.shape[1:]) for x in (query, key, value))
        at = self.lengths.unsqueeze(1) + torch.arange(q.shape[1])  # [num_rows, width]
        rows = torch.arange(num_rows).unsqueeze(1)
        self.keys[layer][rows, :, at] = k
        self.values[layer][rows, :, at] = v
        end = int(self.lengths.max()) + q.shape[1]
        mask = torch.arange(end) <= at.unsqueeze(-1)  # [num_rows, width, end]
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            self.keys[layer][:, :, :end],
            self.values[layer][:, :, :end],
            attn_mask=mask.unsqueeze(1),
            enable_gqa=True,
        )
        return out.transpose(1, 2).reshape_as(query)

    def gated_delta(self, layer: int, inputs: Inputs, weights: Weights) -> Tensor:
        num_rows = self.lengths.shape[0]
        out, state, conv_state = gated_delta.prefill(
            inputs.map(lambda x: x.view(num_rows, -1, x.shape[1])),
            weights,
            state=self.states[layer],
            conv_state=self.conv_states[layer],
            lengths=self.widths,
        )
        self.states[layer], self.conv_states[layer] = state, conv_state
        return out.flatten(0, 1)

    def advance(self) -> None:
        """Count the tokens of the pass that was run; the next one is one token wide."""
        self.lengths = self.lengths + self.widths
        self.widths = torch.ones_like(self.lengths)

    def keep(self, rows: Tensor) -> None:
        """Drop all rows but these, int64 indices."""
        self.keys, self.values = self.keys[:, rows], self.values[:, rows]
        self.states = [None if s is None else s[rows] for s in self.states]
        self.conv_states = [None if s is None else s[rows] for s in self.conv_states]
        self.lengths, self.widths = self.lengths[rows], self.widths[rows]


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """How long and how hot to sample."""

    max_new_tokens: int
    temperatures: Tensor  # float32 [num_rows]; 0 is greedy
    generator: torch.Generator


@torch.inference_mode()
def sample(model: TargetModel, prompts: list[list[int]], plan: SamplingPlan) -> list[list[int]]:
    """Continue each prompt until an end token, which is kept, or `max_new_tokens`.

    The last vocabulary id, the drafters' mask token, is never produced.
    """
    widths = torch.tensor([len(p) for p in prompts])
    width = int(widths.max())
    tokens = torch.tensor([p + [0] * (width - len(p)) for p in prompts])
    cache = DenseCache(model.config, len(prompts), width + plan.max_new_tokens)
    cache.widths = widths
    positions = torch.arange(width).repeat(len(prompts))
    hidden = model(tokens.flatten(), positions, cache).hidden.view(len(prompts), width, -1)
    last = hidden[torch.arange(len(prompts)), widths - 1]
    cache.advance()
    continuations: list[list[int]] = [[] for _ in prompts]
    owners = torch.arange(len(prompts))
    is_running = torch.ones(len(prompts), dtype=torch.bool)
    temperatures = plan.temperatures
    ends = torch.tensor(model.config.eos_token_ids)
    for _ in range(plan.max_new_tokens):
        chosen = _choose(model.logits(last), temperatures, plan.generator)
        for owner, token, running in zip(owners.tolist(), chosen.tolist(), is_running.tolist(), strict=True):
            if running:
                continuations[owner].append(token)
        is_running &= ~torch.isin(chosen, ends)
        if not is_running.any():
            break
        if is_running.float().mean() < COMPACT_BELOW:
            rows = is_running.nonzero().squeeze(1)
            cache.keep(rows)
            owners, chosen, temperatures = owners[rows], chosen[rows], temperatures[rows]
            is_running = is_running[rows]
        last = model(chosen, cache.lengths, cache).hidden
        cache.advance()
    return continuations


def _choose(logits: Tensor, temperatures: Tensor, generator: torch.Generator) -> Tensor:
    """Tokens `[n]` from logits `[n, vocab_size]`: exponential races, or the maximum at temperature 0."""
    logits[:, -1] = -torch.inf
    probs = (logits / temperatures.clamp(min=1e-3).unsqueeze(1)).softmax(-1)
    race = probs / torch.empty_like(probs).exponential_(generator=generator)
    return torch.where(temperatures > 0, race.argmax(-1), logits.argmax(-1))
