"""The three rules that choose a block's tokens from the target's distribution: greedy, seeded, unseeded."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from dspine_cluster.core.acceptance import count_matching
from dspine_cluster.engine.blocks import Block, Verdict, draft_distributions
from dspine_cluster.models.noise import gumbel
from dspine_kernels import acceptance
from dspine_kernels.acceptance import BlockRows

_WIDE_ROWS = 32
"""Rows of the vocabulary's width that are alive at once in 64-bit arithmetic."""


def choose_greedy(logits: Tensor, blocks: Sequence[Block]) -> list[Verdict]:
    """Commit the argmax of each row, the lowest id of equals, while it equals the proposal, and then once more.

    `logits` [num_rows, vocab_size] are those of the blocks, end to end.
    """
    return _match(blocks, acceptance.argmax(logits))


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
    """Speculative sampling with the proposal distributions of the blocks; see `acceptance.accept_sampled`.

    `probs` as for `choose_seeded`.
    """
    # One number a row: those of the proposals, then the one that the block's last token is sampled with.
    uniforms = torch.rand(len(probs), generator=generator, device=generator.device, dtype=torch.float64)
    candidates, draft_probs = draft_distributions(blocks)
    accepted = acceptance.accept_sampled(
        probs,
        _block_rows(blocks, probs.device),
        candidates.to(probs.device),
        draft_probs.to(probs.device),
        uniforms.to(probs.device),
    )
    pairs: list[list[int]] = torch.stack(accepted, 1).tolist()
    return [
        Verdict((*block.proposals[:num_accepted], token), num_accepted)
        for block, (num_accepted, token) in zip(blocks, pairs, strict=True)
    ]


def _block_rows(blocks: Sequence[Block], device: torch.device) -> BlockRows:
    num_rows = [block.num_rows for block in blocks]
    compared = [token for block in blocks for token in (*block.proposals, 0)]
    return BlockRows(
        starts=torch.tensor([0, *accumulate(num_rows)], device=device),
        proposals=torch.tensor(compared, device=device),
        max_rows=max(num_rows),
    )


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
