import pytest
import torch
from torch import nn

from dspine_cluster.miniature.optimizer import Muon, MuonAdamW, lr_scale, orthogonalised


@pytest.mark.parametrize("shape", [(2, 24, 24), (3, 16, 40), (1, 40, 16)])
def test_orthogonalised_matrices_have_singular_values_near_one(shape: tuple[int, int, int]) -> None:
    random = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    left, _, right = torch.linalg.svd(random, full_matrices=False)
    spread = torch.linspace(0.2, 1.0, min(shape[1:]))
    values = torch.linalg.svdvals(orthogonalised(left * spread @ right))
    assert values.min() > 0.5
    assert values.max() < 1.3


def test_a_zero_gradient_changes_nothing() -> None:
    weight = nn.Parameter(torch.ones(16, 16))
    Muon([weight], lr=0.1).step()
    assert torch.equal(weight, torch.ones(16, 16))


def test_muon_takes_matrices_and_adamw_the_rest() -> None:
    model = nn.ModuleDict(
        {
            "embed_tokens": nn.Embedding(20, 16),
            "inner": nn.Linear(16, 32),
            "narrow": nn.Linear(32, 4, bias=False),
            "lm_head": nn.Linear(16, 20, bias=False),
        }
    )
    optimizer = MuonAdamW(model, matrix_lr=0.1, embedding_lr=0.2, other_lr=0.3)
    assert [p.shape for stack in optimizer.muon.stacks for p in stack] == [(32, 16)]
    assert [group["lr"] for group in optimizer.adamw.param_groups] == [0.2, 0.3]


def test_both_optimisers_descend() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16))
    x, y = torch.randn(64, 16), torch.randn(64, 16)
    optimizer = MuonAdamW(model, matrix_lr=0.02, embedding_lr=0.0, other_lr=0.01)
    losses = []
    for _ in range(60):
        loss = (model(x) - y).square().mean()
        torch.autograd.backward(loss)
        optimizer.step(1.0)
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_frozen_parameters_stay() -> None:
    model = nn.Linear(16, 16)
    model.weight.requires_grad_(False)
    before = model.weight.clone()
    optimizer = MuonAdamW(model, matrix_lr=0.1, embedding_lr=0.1, other_lr=0.1)
    torch.autograd.backward(model(torch.ones(1, 16)).sum())
    optimizer.step(1.0)
    assert torch.equal(model.weight, before)


def test_the_rate_warms_up_holds_and_falls_to_zero() -> None:
    rates = [lr_scale(step, 100, 10, 0.5) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9:51] == [1.0] * 42
    assert rates[75] == pytest.approx(0.5)
    assert rates[100] == 0.0
