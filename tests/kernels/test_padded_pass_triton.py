"""Whole passes in padded buffers, every operation a kernel in the interpreter, beside torch's unpadded ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dspine_cluster.core.graph_buckets import GraphBuckets
from dspine_cluster.engine import padded_batch
from dspine_cluster.engine.batch import PackedRows, Segment
from dspine_cluster.engine.engine import Engine
from dspine_cluster.models.config import TargetConfig, parse_target_config
from dspine_cluster.models.packing import pack_weights
from dspine_cluster.models.qwen3_5 import make_qwen3_5
from dspine_kernels import gated_delta, kv_write, paged_attention

PROMPTS = [19, 4, 33]
PAGES = [[0, 4, 8], [1, 5], [2, 6, 9, 3]]
ROUNDS = [([2, 1, 3], [1, 0, 2]), ([0, 1, 2], [0, 0, 1]), ([1, 1, 1], [0, 0, 0])]
"""Widths (0: not in the pass) and accepted proposals."""


def small_config() -> TargetConfig:
    return parse_target_config(
        {
            "model_type": "qwen3_5_text",
            "vocab_size": 50,
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "full_attention_interval": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "rope_theta": 10000.0,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 4096,
            "linear_num_key_heads": 1,
            "linear_num_value_heads": 1,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "linear_conv_kernel_dim": 4,
        }
    )


class Run:
    """An engine after prefill, without features; its unused slots hold NaN."""

    def __init__(self, buckets: GraphBuckets | None) -> None:
        torch.manual_seed(0)
        target = make_qwen3_5(small_config()).requires_grad_(False).eval()
        pack_weights(target)
        self.engine = Engine(target, num_pages=10, num_slots=4, graph_buckets=buckets)
        for pool in (self.engine.kv_pool.keys, self.engine.kv_pool.values):
            pool.fill_(torch.nan)
        self.lengths = list(PROMPTS)
        self.slots = [self.engine.state_pool.allocate() for _ in PROMPTS]
        for length, pages, slot in zip(PROMPTS, PAGES, self.slots, strict=True):
            graphs, self.engine.graphs = self.engine.graphs, None
            chunk = Segment([t % 50 for t in range(length)], 0, pages, slot)
            self.engine.forward(PackedRows.of(chunks=[chunk]))
            self.engine.graphs = graphs

    def round(self, widths: list[int], accepted: list[int]) -> Tensor:
        members = [i for i, width in enumerate(widths) if width]
        blocks = [
            Segment([(7 * j + i) % 50 for j in range(widths[i])], self.lengths[i], PAGES[i], self.slots[i])
            for i in members
        ]
        hidden = self.engine.forward(PackedRows.of(blocks))
        for i in members:
            self.engine.state_pool.set_pending(self.slots[i], accepted[i])
            self.lengths[i] += 1 + accepted[i]
        return hidden


def test_recordable_passes_equal_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Run(None)
    expected = [plain.round(*steps) for steps in ROUNDS]
    padded = Run(GraphBuckets(4, 16))
    for module in (padded_batch, gated_delta, kv_write, paged_attention):
        monkeypatch.setattr(module, "uses_triton", lambda tensor: True)
    for steps, hidden in zip(ROUNDS, expected, strict=True):
        torch.testing.assert_close(padded.round(*steps), hidden, atol=1e-4, rtol=1e-3)
    for own, other in zip(
        padded.engine.state_pool.live_tensors, plain.engine.state_pool.live_tensors, strict=True
    ):
        torch.testing.assert_close(own, other, atol=1e-4, rtol=1e-3)
    keys = (padded.engine.kv_pool.keys, plain.engine.kv_pool.keys)
    torch.testing.assert_close(*keys, atol=1e-4, rtol=1e-3, equal_nan=True)
