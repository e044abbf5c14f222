from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.qwen3_5 import modeling_qwen3_5

from dspine_cluster.models.layers import MLP, GatedRMSNorm, RMSNorm, Rotary, ZeroCentredRMSNorm
from dspine_kernels.kv_write import rotate


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(RMSNorm, modeling_qwen3.Qwen3RMSNorm), (ZeroCentredRMSNorm, modeling_qwen3_5.Qwen3_5RMSNorm)],
)
def test_a_norm_equals_transformers_in_bfloat16_too(ours: type[nn.Module], theirs: type[nn.Module]) -> None:
    mine, reference = ours(32, 1e-6), theirs(32, eps=1e-6)
    mine.load_state_dict({"weight": normal(32)})
    reference.load_state_dict(mine.state_dict())
    x = normal(5, 3, 32, seed=1)
    assert torch.equal(mine(x), reference(x))
    assert torch.equal(mine.bfloat16()(x.bfloat16()), reference.bfloat16()(x.bfloat16()))


def test_the_gated_norm_normalises_before_its_gate() -> None:
    mine, reference = GatedRMSNorm(16, 1e-6), modeling_qwen3_5.Qwen3_5RMSNormGated(16, eps=1e-6)
    mine.load_state_dict({"weight": normal(16)})
    reference.load_state_dict(mine.state_dict())
    x, gate = normal(7, 16, seed=1), normal(7, 16, seed=2)
    assert torch.equal(mine(x, gate), reference(x, gate))


def test_the_mlp_is_swiglu() -> None:
    mlp = MLP(8, 12)
    x = normal(3, 8)
    gate, up = x @ mlp.gate_proj.weight.mT, x @ mlp.up_proj.weight.mT
    wanted = (gate * torch.sigmoid(gate) * up) @ mlp.down_proj.weight.mT
    assert (mlp(x) - wanted).abs().max() < 1e-6


@pytest.mark.parametrize("rotary_dim", [8, 32])
def test_rotation_equals_transformers_and_spares_the_rest_of_the_head(rotary_dim: int) -> None:
    positions = torch.tensor([0, 3, 4000])
    heads = normal(3, 2, 32)
    angles = positions[:, None] / 1e6 ** (torch.arange(0, rotary_dim, 2) / rotary_dim)
    angles = torch.cat((angles, angles), -1)
    wanted, _ = modeling_qwen3_5.apply_rotary_pos_emb(heads, heads, angles.cos(), angles.sin())
    got = rotate(heads, *Rotary.at(positions, rotary_dim, 1e6, torch.float32))
    assert (got - wanted).abs().max() < 1e-5
    assert torch.equal(got[..., rotary_dim:], heads[..., rotary_dim:])


def test_rotated_products_depend_on_distance_only() -> None:
    query, key = normal(1, 1, 32), normal(1, 1, 32, seed=1)

    def product(query_position: int, key_position: int) -> float:
        at = [Rotary.at(torch.tensor([p]), 32, 1e4, torch.float32) for p in (query_position, key_position)]
        return float((rotate(query, *at[0]) * rotate(key, *at[1])).sum())

    assert product(9, 4) == pytest.approx(product(105, 100), abs=1e-4)
    assert product(9, 4) != pytest.approx(product(9, 5), abs=1e-2)
