"""The three rules that choose a block's tokens from the target's distribution: greedy, seeded, unseeded."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dspine_cluster.engine.blocks import BlockBatch, IntArray, draft_distributions
from dspine_cluster.models.noise import gumbel
from dspine_kernels import acceptance
from dspine_kernels.acceptance import BlockRows

_WIDE_ROWS = 32
"""Rows of the vocabulary's width that are alive at once in 64-bit arithmetic."""


class Choice(NamedTuple):
    """What `Verdicts` hold of some blocks."""

    tokens: IntArray
    """[num_rows]"""
    num_accepted: IntArray
    """[num_blocks]"""


def choose_greedy(logits: Tensor, blocks: BlockBatch) -> Choice:
    """Commit the argmax of each row, the lowest id of equals, while it equals the proposal, and then once more.

    `logits` [num_rows, vocab_size] are those of the blocks, end to end.
    """
    return _match(blocks, acceptance.argmax(logits))


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
    return _match(blocks, torch.cat([_argmax_with_noise(*group) for group in groups]))


def choose_unseeded(probs: Tensor, blocks: BlockBatch, generator: torch.Generator) -> Choice:
    """Speculative sampling with the proposal distributions of the blocks; see `acceptance.accept_sampled`.

    `probs` as for `choose_seeded`.
    """
    # One number a row: those of the proposals, then the one that the block's last token is sampled with.
    uniforms = torch.rand(len(probs), generator=generator, device=generator.device, dtype=torch.float64)
    candidates, draft_probs = draft_distributions(blocks)
    starts, ends = _bounds(blocks)
    tokens = np.roll(blocks.tokens, -1)  # each row's proposal; the last row of a block has none
    rows = BlockRows(
        starts=torch.tensor([0, *ends.tolist()], device=probs.device),
        proposals=torch.from_numpy(tokens).to(probs.device),
        max_rows=max(blocks.num_rows),
    )
    accepted = acceptance.accept_sampled(
        probs,
        rows,
        candidates.to(probs.device),
        draft_probs.to(probs.device),
        uniforms.to(probs.device),
    )
    num_accepted, bonus_tokens = torch.stack(accepted).cpu().numpy()
    tokens[starts + num_accepted] = bonus_tokens
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


def _bounds(blocks: BlockBatch) -> tuple[IntArray, IntArray]:
    """The first row of each block, and the row behind its last: `[num_blocks]` each."""
    num_rows = np.array(blocks.num_rows)
    ends = num_rows.cumsum()
    return ends - num_rows, ends


def _match(blocks: BlockBatch, chosen: Tensor) -> Choice:
    """What is committed where the target's token of every row, `chosen` [num_rows], is determined."""
    tokens: IntArray = chosen.cpu().numpy()
    starts, ends = _bounds(blocks)
    differs = tokens != np.roll(blocks.tokens, -1)
    differs[ends - 1] = True  # nothing is proposed there
    places = np.flatnonzero(differs)
    return Choice(tokens, places[places.searchsorted(starts)] - starts)
