"""The three rules that choose a block's tokens from the target's distribution: greedy, seeded, unseeded."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dspine_cluster.engine.blocks import BlockBatch, draft_distributions
from dspine_cluster.models.noise import gumbel
from dspine_kernels import acceptance
from dspine_kernels.acceptance import BlockRows

_WIDE_ROWS = 32
"""Rows of the vocabulary's width that are alive at once in 64-bit arithmetic."""


class Choice(NamedTuple):
    """What `Verdicts` hold of some blocks."""

    tokens: list[int]
    num_accepted: list[int]


def choose_greedy(logits: Tensor, blocks: BlockBatch) -> Choice:
    """Commit the argmax of each row, the lowest id of equals, while it equals the proposal, and then once more.

    `logits` [num_rows, vocab_size] are those of the blocks, end to end.
    """
    return match(blocks, acceptance.argmax(logits).tolist())


def choose_seeded(probs: Tensor, blocks: BlockBatch) -> Choice:
    """As greedy, with the argmax over the support of log p + Gumbel(seed, output position, token id).

    `probs` [num_rows, vocab_size] float32 are the target's distributions of the blocks' rows, end to end.
    """
    places = [
        (rules.sampling.seed, first + j)
        for rules, first, count in zip(blocks.rules, blocks.output_indices, blocks.num_rows, strict=True)
        for j in range(count)
    ]
    seeds, output_indices = torch.tensor(places, device=probs.device).long().unbind(-1)
    groups = zip(*(torch.split(t, _WIDE_ROWS) for t in (probs, seeds, output_indices)), strict=True)
    chosen = torch.cat([_argmax_with_noise(*group) for group in groups])
    return match(blocks, chosen.tolist())


def choose_unseeded(probs: Tensor, blocks: BlockBatch, generator: torch.Generator) -> Choice:
    """Speculative sampling with the proposal distributions of the blocks; see `acceptance.accept_sampled`.

    `probs` as for `choose_seeded`.
    """
    # One number a row: those of the proposals, then the one that the block's last token is sampled with.
    uniforms = torch.rand(len(probs), generator=generator, device=generator.device, dtype=torch.float64)
    candidates, draft_probs = draft_distributions(blocks)
    starts = blocks.starts
    tokens = [*blocks.tokens[1:], 0]  # what each row is compared with; the last row of a block with any token
    rows = BlockRows(
        starts=torch.tensor([*starts, len(tokens)], device=probs.device),
        proposals=torch.tensor(tokens, device=probs.device),
        max_rows=max(blocks.num_rows),
    )
    accepted = acceptance.accept_sampled(
        probs,
        rows,
        candidates.to(probs.device),
        draft_probs.to(probs.device),
        uniforms.to(probs.device),
    )
    num_accepted, bonus_tokens = torch.stack(accepted).tolist()
    for start, count, token in zip(starts, num_accepted, bonus_tokens, strict=True):
        tokens[start + count] = token
    return Choice(tokens, num_accepted)


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


def match(blocks: BlockBatch, tokens: list[int]) -> Choice:
    """What is committed where the target's token of every row, one of `tokens`, is determined: proposals up to the
    first that differs."""
    proposals = blocks.tokens[1:]  # of each row, but for the last of a block
    num_accepted = []
    for start, num_rows in zip(blocks.starts, blocks.num_rows, strict=True):
        row, last = start, start + num_rows - 1
        while row < last and tokens[row] == proposals[row]:
            row += 1
        num_accepted.append(row - start)
    return Choice(tokens, num_accepted)
