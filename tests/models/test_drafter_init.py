from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dspine_cluster.errors import ConfigError
from dspine_cluster.models.drafter_init import build_drafter, transfer_space
from dspine_cluster.models.dspine import DSpine
from tests.models.drafter_cases import small_config

LM_HEAD = torch.randn(80, 24, generator=torch.Generator().manual_seed(0)) @ torch.diag(
    torch.linspace(0.1, 2, 24)
)


def test_codes_are_the_unit_rows_of_the_whitened_head() -> None:
    rows = F.normalize(LM_HEAD, dim=-1).numpy().astype(np.float64)
    left, _, _ = np.linalg.svd(rows - rows.mean(0), full_matrices=False)
    whitened = torch.from_numpy(left[:, :12]).float()
    expected = F.normalize(whitened, dim=-1)
    codes = transfer_space(LM_HEAD, 12).codes
    torch.testing.assert_close(codes.norm(dim=-1), torch.ones(80))
    # Directions have no sign of their own, but similarities of codes do.
    torch.testing.assert_close(codes @ codes.T, expected @ expected.T, atol=1e-4, rtol=0)


def test_directions_are_the_orthonormal_ones_of_most_variance() -> None:
    directions = transfer_space(LM_HEAD, 12).directions
    torch.testing.assert_close(directions @ directions.T, torch.eye(12), atol=1e-5, rtol=0)
    rows = F.normalize(LM_HEAD, dim=-1)
    variance = ((rows - rows.mean(0)) @ directions.T).var(0)
    total = (rows - rows.mean(0)).var(0).sum()
    others = torch.linalg.qr(torch.randn(24, 12)).Q
    assert variance.sum() > ((rows - rows.mean(0)) @ others).var(0).sum()
    assert variance.sum() <= total


@pytest.mark.parametrize("rank", [5, 25])
def test_a_rank_beyond_the_heads_directions_is_refused(rank: int) -> None:
    low_rank = torch.randn(80, 3) @ torch.randn(3, 24)
    with pytest.raises(ConfigError, match=f"transfer_rank {rank}"):
        transfer_space(low_rank, rank)


def test_a_new_dspine_drafter_starts_as_its_backbone_with_readouts_on_the_directions() -> None:
    drafter = build_drafter(small_config(), embedding=LM_HEAD, lm_head=LM_HEAD, seed=0)
    assert isinstance(drafter, DSpine)
    assert bool(drafter.transfer_ready)
    torch.testing.assert_close(drafter.transfer_codes, transfer_space(LM_HEAD, 12).codes)
    for layer in range(3):
        weights = drafter.injection.weights(layer)
        assert not weights.write.any()
        torch.testing.assert_close(weights.readout, transfer_space(LM_HEAD, 12).directions)
    assert not drafter.injection.predecessor_gate.weight.any()
    assert drafter.injection.message.weight.any()


def test_a_seed_decides_the_weights() -> None:
    def weights(seed: int) -> torch.Tensor:
        drafter = build_drafter(small_config("dflash"), embedding=LM_HEAD, lm_head=LM_HEAD, seed=seed)
        return torch.cat([parameter.flatten() for parameter in drafter.parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))
