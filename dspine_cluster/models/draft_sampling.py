"""How proposals are sampled: the request's temperature, and the noise that a seed shares with the verifier."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dspine_cluster.models.noise import gumbel


@dataclass(frozen=True, slots=True)
class DraftSampling:
    """Sampling of a batch of blocks, one entry a block."""

    temperature: Tensor  # float32 [num_blocks]; 0 is greedy
    seeds: Tensor  # int64 [num_blocks]; meaningful where has_seed
    has_seed: Tensor  # bool, or a number that is one [num_blocks]
    output_index: Tensor  # int64 [num_blocks]: output position of the first proposal
    generator: torch.Generator | None = None
    """Randomness of unseeded blocks; None uses torch's default generator."""
    is_greedy: bool = False
    """Whether every block is at temperature 0, known without asking the device."""
    is_unseeded: bool = False
    """Whether no block has a seed."""

    @classmethod
    def greedy(cls, num_blocks: int, device: torch.device | None = None) -> DraftSampling:
        """Every block at temperature 0."""
        zeros = torch.zeros(num_blocks, dtype=torch.int64, device=device)
        return cls(zeros.float(), seeds=zeros, has_seed=zeros.bool(), output_index=zeros, is_greedy=True)

    def noise(self, candidates: Tensor) -> Tensor | None:
        """Gumbel noise float64 for candidates `[num_blocks, num_proposals, top_k]`; None where all is greedy.

        Zero for greedy blocks. A seeded candidate's noise depends on (seed, its output position, its token id).
        Waits for nothing on the device.
        """
        if self.is_greedy:
            return None
        uniform = torch.rand(
            candidates.shape, generator=self.generator, dtype=torch.float64, device=candidates.device
        )
        noise = -torch.log(-torch.log(uniform))
        if not self.is_unseeded:
            offsets = torch.arange(candidates.shape[1], device=candidates.device)
            output_indices = self.output_index[:, None] + offsets  # [num_blocks, num_proposals]
            seeded = gumbel(self.seeds[:, None, None], output_indices[..., None], candidates)
            noise = torch.where(self.has_seed[:, None, None].bool(), seeded, noise)
        return torch.where((self.temperature == 0)[:, None, None], 0.0, noise)
