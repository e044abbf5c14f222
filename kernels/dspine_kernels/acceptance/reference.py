"""Acceptance in plain torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

_WIDE_ROWS = 32
"""Rows of the vocabulary's width that are alive at once in 64-bit arithmetic."""


@dataclass(frozen=True, slots=True)
class BlockRows:
    """Blocks of proposals laid end to end; a block has a row for each proposal and one more."""

    starts: Tensor
    """int64 [num_blocks + 1]: the first row of each block, then their number."""
    proposals: Tensor
    """int64 [num_rows]: what each row is compared with; any id in the last row of a block."""
    max_rows: int
    """At least the rows of the longest block."""

    @property
    def num_blocks(self) -> int:
        return self.starts.shape[0] - 1


class Accepted(NamedTuple):
    """A block commits its first `num_accepted` proposals, then one token more."""

    num_accepted: Tensor  # int64 [num_blocks]
    tokens: Tensor  # int64 [num_blocks]


def argmax(logits: Tensor) -> Tensor:
    """The id of the largest of each row `[num_rows, vocab_size]`, the lowest of equals; int64 `[num_rows]`."""
    return logits.argmax(-1)


def accept_sampled(
    probs: Tensor, blocks: BlockRows, draft_candidates: Tensor, draft_probs: Tensor, uniforms: Tensor
) -> Accepted:
    """Speculative sampling (Leviathan et al. 2023, algorithm 1) with a sparse q.

    Proposal x is accepted with probability min(1, p(x) / q(x)), decided by its row's uniform number. The token after
    the accepted ones comes from max(p - q, 0) renormalised after a rejection (from p where that is zero), from p where
    all were accepted: the inverse of the cumulative weights at the uniform number of the block's last row.

    Args:
        probs: p, the target's distributions, float32 `[num_rows, vocab_size]`.
        blocks: the proposals.
        draft_candidates: int64 `[num_rows, top_k]`, where q has its mass.
        draft_probs: float32, same shape: q; zero in the last row of each block, unless a proposal that is not there was
            rejected.
        uniforms: float64 `[num_rows]` in [0, 1).
    """
    target = probs.gather(1, blocks.proposals[:, None])[:, 0].double()
    of_proposal = draft_candidates == blocks.proposals[:, None]
    draft = torch.where(of_proposal, draft_probs.double(), 0.0).sum(-1)
    is_certain = (target > 0.0) & (target >= draft)
    num_accepted = _count_leading(is_certain | (uniforms * draft < target), blocks)
    rows = blocks.starts[:-1] + num_accepted
    final = probs[rows]  # [num_blocks, vocab_size]
    weights = final.scatter_add(1, draft_candidates[rows], -draft_probs[rows]).clamp_(min=0.0)
    weights = torch.where(weights.sum(-1, keepdim=True) > 0.0, weights, final)
    groups = zip(
        torch.split(weights, _WIDE_ROWS),
        torch.split(uniforms[blocks.starts[1:] - 1], _WIDE_ROWS),
        strict=True,
    )
    return Accepted(num_accepted, torch.cat([_invert_cdf(*group) for group in groups]))


def _count_leading(is_accepted: Tensor, blocks: BlockRows) -> Tensor:
    """True rows before each block's first false one, its last row taken as false; int64 `[num_blocks]`."""
    num_rows = blocks.starts.diff()
    numbers = torch.arange(blocks.num_blocks, device=num_rows.device)
    block_of_row = numbers.repeat_interleave(num_rows, output_size=is_accepted.shape[0])
    places = torch.arange(is_accepted.shape[0], device=num_rows.device) - blocks.starts[block_of_row]
    ends = torch.where(is_accepted, is_accepted.shape[0], places)
    return (num_rows - 1).scatter_reduce(0, block_of_row, ends, "amin")


def _invert_cdf(weights: Tensor, uniforms: Tensor) -> Tensor:
    """The token of each row where the cumulative weight first exceeds its share `uniforms`, float64 in [0, 1)."""
    cumulative = weights.double().cumsum(-1)
    # The share stays below 1 after rounding, so that a token of weight zero is never reached.
    shares = uniforms.clamp(max=1.0 - 1e-12) * cumulative[:, -1]
    return torch.searchsorted(cumulative, shares[:, None], right=True)[:, 0]
