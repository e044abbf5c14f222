from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dspine_cluster.models.noise import gumbel

_MASK = (1 << 64) - 1


def _splitmix(state: int) -> int:
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)


def _gumbel_by_definition(seed: int, output_index: int, token_id: int) -> float:
    golden = 0x9E3779B97F4A7C15
    stream = _splitmix(_splitmix((seed + golden) & _MASK) ^ ((output_index * golden) & _MASK))
    bits = _splitmix((stream + (token_id + 1) * golden) & _MASK)
    uniform = ((bits >> 12) + 0.5) * 2.0**-52
    return -math.log(-math.log(uniform))


def _grid(num_seeds: int, num_indices: int, num_tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.arange(num_seeds).view(-1, 1, 1),
        torch.arange(num_indices).view(1, -1, 1),
        torch.arange(num_tokens).view(1, 1, -1),
    )


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63), 123456789])
@pytest.mark.parametrize(("output_index", "token_id"), [(0, 0), (7, 3071), (100_000, 248_319)])
def test_noise_equals_its_definition_in_unbounded_integers(
    seed: int, output_index: int, token_id: int
) -> None:
    noise = gumbel(torch.tensor([seed]), torch.tensor([output_index]), torch.tensor([token_id]))
    assert noise.dtype == torch.float64
    assert noise.item() == pytest.approx(_gumbel_by_definition(seed, output_index, token_id), rel=1e-12)


def test_noise_does_not_depend_on_shape_or_batch() -> None:
    whole = gumbel(*_grid(3, 5, 257))
    for seed, index, token in [(0, 0, 0), (2, 4, 256), (1, 3, 100)]:
        alone = gumbel(torch.tensor(seed), torch.tensor(index), torch.tensor(token))
        torch.testing.assert_close(alone, whole[seed, index, token], rtol=1e-15, atol=0)
    candidates = torch.tensor([5, 250, 17])
    part = gumbel(torch.tensor([[1]]), torch.tensor([[2]]), candidates[None])
    torch.testing.assert_close(part[0], whole[1, 2, candidates], rtol=1e-15, atol=0)


def test_noise_is_standard_gumbel() -> None:
    noise = gumbel(*_grid(10, 10, 1000)).flatten()
    assert bool(noise.isfinite().all())
    ordered = noise.sort().values
    cdf = torch.exp(-torch.exp(-ordered))
    steps = torch.arange(1, len(ordered) + 1) / len(ordered)
    kolmogorov_smirnov = float((cdf - steps).abs().max()) * math.sqrt(len(ordered))
    assert kolmogorov_smirnov < 1.63  # the 1 % point


def test_neighbouring_seeds_positions_and_tokens_are_uncorrelated() -> None:
    noise = gumbel(*_grid(60, 60, 60))
    noise = (noise - noise.mean()) / noise.std()
    for dim in range(3):
        size = noise.shape[dim] - 1
        products = noise.narrow(dim, 0, size) * noise.narrow(dim, 1, size)
        assert abs(float(products.mean())) * math.sqrt(products.numel()) < 4.0


def test_seed_and_position_are_not_interchangeable() -> None:
    noise = gumbel(*_grid(40, 40, 4))
    assert len(torch.unique(noise)) == noise.numel()
