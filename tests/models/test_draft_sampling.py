from __future__ import annotations

import torch

from dspine_cluster.models.draft_sampling import DraftSampling
from dspine_cluster.models.noise import gumbel
from tests.models.drafter_cases import sampling_of

CANDIDATES = torch.randperm(1000)[:60].view(3, 4, 5)


def test_a_greedy_batch_needs_no_noise() -> None:
    assert DraftSampling.greedy(3).noise(CANDIDATES) is None


def test_greedy_blocks_in_a_mixed_batch_have_zero_noise() -> None:
    noise = sampling_of([1.0, 0.0, 1.0], [None, 4, 5]).noise(CANDIDATES)
    assert noise is not None
    assert (noise[1] == 0).all()
    assert (noise[[0, 2]] != 0).all()


def test_seeded_noise_depends_on_seed_output_position_and_token_alone() -> None:
    noise = sampling_of([1.0, 1.0, 1.0], [None, 8, 9], [0, 20, 6]).noise(CANDIDATES)
    assert noise is not None
    for j in range(4):
        expected = gumbel(torch.tensor(9), torch.tensor(6 + j), CANDIDATES[2, j])
        assert torch.equal(noise[2, j], expected)


def test_unseeded_noise_comes_from_the_generator() -> None:
    def noise(generator_seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(generator_seed)
        noise = sampling_of([1.0] * 3, generator=generator).noise(CANDIDATES)
        assert noise is not None
        return noise

    assert torch.equal(noise(1), noise(1))
    assert not torch.equal(noise(1), noise(2))


def test_unseeded_noise_is_standard_gumbel() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = sampling_of([1.0], generator=generator).noise(torch.zeros(1, 100, 400, dtype=torch.int64))
    assert noise is not None
    assert abs(float(noise.mean()) - 0.5772) < 0.03  # Euler's constant
    assert abs(float(noise.var()) - torch.pi**2 / 6) < 0.05
