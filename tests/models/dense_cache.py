"""A dense cache for parity tests: the real kernels over one page run and one state a request."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dspine_cluster.models.config import TargetConfig
from dspine_cluster.models.target import TargetModel
from dspine_kernels import gated_delta, kv_write, paged_attention
from dspine_kernels.gated_delta import Inputs, Weights
from dspine_kernels.kv_write import HeadTransform

PAGE = 16


class DenseCache:
    """Requests of any lengths; each pass is either a prefill chunk or a block to verify."""

    def __init__(self, config: TargetConfig, num_requests: int, max_tokens: int) -> None:
        pages = -(-max_tokens // PAGE)
        shape = (
            config.num_attention_layers,
            num_requests * pages,
            PAGE,
            config.num_kv_heads,
            config.head_dim,
        )
        self.keys, self.values = (torch.full(shape, float("nan")) for _ in range(2))
        # Pages of the requests alternate, so that no request's pages are adjacent.
        self.page_table = torch.arange(num_requests * pages).view(pages, num_requests).t().contiguous()
        self.num_cached = torch.zeros(num_requests, dtype=torch.int64)
        self.num_pending = torch.zeros(num_requests, dtype=torch.int64)
        self.states: dict[int, tuple[Tensor, Tensor]] = {}
        self.pending: dict[int, Inputs] = {}
        if config.gated_delta is not None:
            delta = config.gated_delta
            for layer in range(config.num_gated_delta_layers):
                self.states[layer] = (
                    torch.zeros(
                        num_requests, delta.num_value_heads, delta.key_head_dim, delta.value_head_dim
                    ),
                    torch.zeros(num_requests, delta.conv_kernel - 1, delta.conv_dim),
                )
        self.lengths = self.num_cached
        self.is_block = False

    def run(self, model: TargetModel, tokens: Sequence[Tensor], *, is_block: bool) -> list[Tensor]:
        """One pass over new tokens of every request; float32 logits a request. A block must be committed next."""
        self.is_block = is_block
        self.lengths = torch.tensor([len(row) for row in tokens])
        steps = torch.arange(int(self.lengths.max()))
        self.valid = steps < self.lengths[:, None]
        positions = (self.num_cached[:, None] + steps)[self.valid]
        slots = (
            self.page_table.gather(1, (self.num_cached[:, None] + steps).where(self.valid, 0) // PAGE) * PAGE
        )
        self.slots = slots[self.valid] + positions % PAGE
        logits = model.logits(model(torch.cat(list(tokens)), positions, self).hidden)
        if not is_block:
            self.num_cached = self.num_cached + self.lengths
        return list(torch.split(logits, self.lengths.tolist()))

    def commit(self, num_tokens: Tensor) -> None:
        """Keep the first `num_tokens` `[num_requests]` tokens of the block just verified."""
        self.num_cached = self.num_cached + num_tokens
        self.num_pending = num_tokens - 1

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, heads: HeadTransform) -> Tensor:
        keys, values = self.keys[layer], self.values[layer]
        query = kv_write.write(query, key, value, heads, keys, values, self.slots)
        scale = query.shape[-1] ** -0.5
        plan = paged_attention.plan(
            self.page_table.tolist(),
            self.lengths.tolist(),
            self.num_cached.tolist(),
            page_tokens=PAGE,
            device=query.device,
        )
        return paged_attention.attend(query, keys, values, plan, scale)

    def gated_delta(self, layer: int, inputs: Inputs, weights: Weights) -> Tensor:
        state, conv_state = self.states[layer]
        new = inputs.map(self._pad)
        if self.is_block:
            out, *states = gated_delta.verify(
                new,
                weights,
                state=state,
                conv_state=conv_state,
                pending=self.pending.get(layer, new.map(lambda x: x[:, :0])),
                num_pending=self.num_pending,
            )
            self.pending[layer] = new.map(lambda x: x[:, 1:])
        else:
            assert not self.pending, "prefill first"
            out, *states = gated_delta.prefill(
                new, weights, state=state, conv_state=conv_state, lengths=self.lengths
            )
        self.states[layer] = (states[0], states[1])
        return out[self.valid]

    def _pad(self, rows: Tensor) -> Tensor:
        padded = rows.new_zeros(*self.valid.shape, rows.shape[-1])
        padded[self.valid] = rows
        return padded
