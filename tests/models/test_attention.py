from __future__ import annotations

import torch
from torch import Tensor

from dspine_cluster.models.attention import Attention, GatedAttention
from dspine_cluster.models.cache import SequenceCache
from dspine_cluster.models.config import parse_target_config
from dspine_cluster.models.layers import Rotary
from tests.models.test_config import HYBRID

CONFIG = parse_target_config(HYBRID)
ROTARY = Rotary.at(torch.arange(6), CONFIG.rotary_dim, CONFIG.rope_theta, torch.float32)


def inputs() -> Tensor:
    return torch.randn(6, CONFIG.hidden_size, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def test_a_closed_gate_silences_its_own_head_only() -> None:
    attention = GatedAttention(CONFIG, 0)
    attention.o_proj.weight.copy_(torch.eye(CONFIG.num_heads * CONFIG.head_dim)[: CONFIG.hidden_size])
    x = inputs()
    x[:, 0] = 1e4
    before = attention(x, ROTARY, SequenceCache(1, 6)).unflatten(-1, (-1, CONFIG.head_dim))
    gate_of_head_1 = slice(3 * CONFIG.head_dim, 4 * CONFIG.head_dim)
    attention.q_proj.weight[gate_of_head_1] = 0.0
    attention.q_proj.weight[gate_of_head_1, 0] = -1.0
    after = attention(x, ROTARY, SequenceCache(1, 6)).unflatten(-1, (-1, CONFIG.head_dim))
    assert not after[:, 1].any()
    assert torch.equal(after[:, [0, 2]], before[:, [0, 2]])


@torch.no_grad()
def test_a_later_token_never_changes_an_earlier_output() -> None:
    for attention in (Attention(CONFIG, 0), GatedAttention(CONFIG, 0)):
        x = inputs()
        before = attention(x, ROTARY, SequenceCache(1, 6))
        x[4:] += 1.0
        after = attention(x, ROTARY, SequenceCache(1, 6))
        assert torch.allclose(after[:4], before[:4], atol=1e-6)
        assert not torch.allclose(after[4:], before[4:], atol=1e-3)
