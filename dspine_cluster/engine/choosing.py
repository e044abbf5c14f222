"""The three rules that choose a block's tokens from the target's distribution: greedy, seeded, unseeded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dspine_cluster.core.acceptance import count_accepted, count_matching
from dspine_cluster.engine.blocks import Block, Verdict
from dspine_cluster.models.noise import gumbel

_WIDE_ROWS = 32
"""Rows of the vocabulary's width that are alive at once in 64-bit arithmetic."""


def choose_greedy(logits: Tensor, blocks: Sequence[Block]) -> list[Verdict]:
    """Commit the argmax of each row, the lowest id of equals, while it equals the proposal, and then once more.

    `logits` [num_rows, vocab_size] float32 are those of the blocks, end to end.
    """
    return _match(blocks, logits.argmax(-1))


def choose_seeded(probs: Tensor, blocks: Sequence[Block]) -> list[Verdict]:
    """As greedy, with the argmax over the support of log p + Gumbel(seed, output position, token id).

    `probs` [num_rows, vocab_size] float32 are the target's distributions of the blocks' rows, end to end.
    """
    places = [
        (block.sampling.seed, block.output_index + j) for block in blocks for j in range(block.num_rows)
    ]
    seeds, output_indices = torch.tensor(places, device=probs.device).long().unbind(-1)
    groups = zip(*(torch.split(t, _WIDE_ROWS) for t in (probs, seeds, output_indices)), strict=True)
    return _match(blocks, torch.cat([_argmax_with_noise(*group) for group in groups]))


def choose_unseeded(probs: Tensor, blocks: Sequence[Block], generator: torch.Generator) -> list[Verdict]:
    """Speculative sampling: accept x with min(1, p(x) / q(x)), then sample once.

    The last token comes from max(p - q, 0) renormalised after a rejection (from p where that is zero), from p when
    all proposals were accepted. `probs` as for `choose_seeded`.
    """
    target_probs = _proposal_probs(probs, blocks)
    # One number a row: those of the proposals, then the one that the block's last token is sampled with.
    drawn = torch.rand(len(probs), generator=generator, device=generator.device, dtype=torch.float64)
    uniforms: list[float] = drawn.tolist()
    final = _FinalRows()
    accepted: list[int] = []
    start = 0
    for block in blocks:
        end = start + len(block.proposals)
        distributions = block.draft_distributions()
        draft_probs = [
            sum(prob for token, prob in distribution if token == proposal)
            for proposal, distribution in zip(block.proposals, distributions, strict=True)
        ]
        num_accepted = count_accepted(target_probs[start:end], draft_probs, uniforms[start:end])
        rejected = distributions[num_accepted] if num_accepted < len(block.proposals) else []
        final.append(start + num_accepted, rejected, uniforms[end])
        accepted.append(num_accepted)
        start = end + 1
    return [
        Verdict((*block.proposals[:num_accepted], token), num_accepted)
        for block, num_accepted, token in zip(blocks, accepted, final.sample(probs), strict=True)
    ]


@dataclass(slots=True)
class _FinalRows:
    """The one row of each block that still has to be sampled, and the q to take off it."""

    rows: list[int] = field(default_factory=list)
    uniforms: list[float] = field(default_factory=list)
    draft_places: list[tuple[int, int]] = field(default_factory=list)
    draft_probs: list[float] = field(default_factory=list)

    def append(self, row: int, draft_distribution: list[tuple[int, float]], uniform: float) -> None:
        for token, prob in draft_distribution:
            self.draft_places.append((len(self.rows), token))
            self.draft_probs.append(prob)
        self.rows.append(row)
        self.uniforms.append(uniform)

    def sample(self, probs: Tensor) -> list[int]:
        target = probs[self.rows]  # [num_blocks, vocab_size]
        weights = target.clone()
        places = torch.tensor(self.draft_places, device=probs.device).long().view(-1, 2)
        draft_probs = torch.tensor(self.draft_probs, device=probs.device, dtype=probs.dtype)
        weights.index_put_(places.unbind(-1), -draft_probs, accumulate=True).clamp_(min=0.0)
        weights = torch.where(weights.sum(-1, keepdim=True) > 0.0, weights, target)
        uniforms = torch.tensor(self.uniforms, device=probs.device, dtype=torch.float64)
        groups = zip(torch.split(weights, _WIDE_ROWS), torch.split(uniforms, _WIDE_ROWS), strict=True)
        tokens: list[int] = torch.cat([_invert_cdf(*group) for group in groups]).tolist()
        return tokens


def _proposal_probs(probs: Tensor, blocks: Sequence[Block]) -> list[float]:
    """p(x) of the proposal each row is compared with, and of token 0 for the last row of each block."""
    compared = [token for block in blocks for token in (*block.proposals, 0)]
    ids = torch.tensor(compared, device=probs.device)
    values: list[float] = probs.gather(1, ids[:, None])[:, 0].tolist()
    return values


def _invert_cdf(weights: Tensor, uniforms: Tensor) -> Tensor:
    """The token of each row where the cumulative weight first exceeds its share `uniforms`, float64 in [0, 1)."""
    cumulative = weights.double().cumsum(-1)
    # The share stays below 1 after rounding, so that a token of weight zero is never reached.
    shares = uniforms.clamp(max=1.0 - 1e-12) * cumulative[:, -1]
    return torch.searchsorted(cumulative, shares[:, None], right=True)[:, 0]


def _argmax_with_noise(probs: Tensor, seeds: Tensor, output_indices: Tensor) -> Tensor:
    """The token of each row; noise is drawn for the whole width only where most of it has probability."""
    if 4 * int(probs.count_nonzero()) > probs.numel():
        all_ids = torch.arange(probs.shape[-1], device=probs.device)
        noise = gumbel(seeds[:, None], output_indices[:, None], all_ids)
        return noise.add_(probs.double().log_()).argmax(-1)
    rows, ids = probs.nonzero(as_tuple=True)
    scores = torch.full_like(probs, -torch.inf, dtype=torch.float64)
    scores[rows, ids] = probs[rows, ids].double().log_() + gumbel(seeds[rows], output_indices[rows], ids)
    return scores.argmax(-1)


def _match(blocks: Sequence[Block], chosen: Tensor) -> list[Verdict]:
    """Verdicts where the target's token of every row, `chosen` [num_rows], is determined."""
    tokens: list[int] = chosen.tolist()
    verdicts = []
    start = 0
    for block in blocks:
        own = tokens[start : start + block.num_rows]
        num_accepted = count_matching(block.proposals, own)
        verdicts.append(Verdict(tuple(own[: num_accepted + 1]), num_accepted))
        start += block.num_rows
    return verdicts
