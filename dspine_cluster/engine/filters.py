"""From logits to the distribution that a request samples from: temperature, top-k, top-p, min-p, renormalise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dspine_cluster.types import SamplingParams

_NUCLEUS_GUESS = 256
"""Ranked tokens that nearly always hold a top-p nucleus; the whole row is sorted only where they do not."""


@dataclass(frozen=True, slots=True)
class FilterRows:
    """One row of logits a position: tensors of shape [num_rows]."""

    temperature: Tensor
    """float32, above 0."""
    top_k: Tensor
    """int64, the vocabulary's size where unlimited."""
    top_p: Tensor
    """float64, infinity where unlimited."""
    min_p: Tensor
    """float32, 0 where unlimited."""
    max_top_k: int
    """The largest `top_k`: how many ranks the rows can need at most."""
    ranks: bool
    """Whether any row has a top-k or a top-p."""
    has_min_p: bool

    @classmethod
    def build(
        cls,
        params: Sequence[SamplingParams],
        num_rows: Sequence[int],
        *,
        vocab_size: int,
        device: torch.device,
    ) -> FilterRows:
        """`num_rows[i]` consecutive rows for `params[i]`."""
        top_k = [min(p.top_k, vocab_size) or vocab_size for p in params]
        top_p = [p.top_p if p.top_p < 1.0 else torch.inf for p in params]
        repeats = torch.tensor(num_rows, device=device)

        def rows(values: Sequence[float], dtype: torch.dtype) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device).repeat_interleave(repeats)

        return cls(
            temperature=rows([p.temperature for p in params], torch.float32),
            top_k=rows(top_k, torch.int64),
            top_p=rows(top_p, torch.float64),
            min_p=rows([p.min_p for p in params], torch.float32),
            max_top_k=max(top_k, default=0),
            ranks=any(k < vocab_size for k in top_k) or any(p < torch.inf for p in top_p),
            has_min_p=any(p.min_p > 0.0 for p in params),
        )


def target_probs(logits: Tensor, filters: FilterRows) -> Tensor:
    """The distribution of each row of `logits` [num_rows, vocab_size] float32, as float32 of that shape.

    Top-p keeps the smallest set of likeliest tokens, among those that top-k kept, whose renormalised mass
    reaches it; min-p keeps the tokens of at least that fraction of the maximum. One token at least stays. Equally
    likely tokens rank by ascending id.
    """
    peaks = logits.amax(-1, keepdim=True)
    probs = (logits - peaks).div_(filters.temperature[:, None]).softmax(-1)
    if filters.ranks:
        probs.masked_fill_(~_ranked_support(probs, filters), 0.0)
    if filters.has_min_p:
        probs.masked_fill_(probs < filters.min_p[:, None] * probs.amax(-1, keepdim=True), 0.0)
    # Rows without filters too, so that a row's last bits do not depend on its neighbours.
    return probs.div_(probs.sum(-1, keepdim=True))


def _ranked_support(probs: Tensor, filters: FilterRows) -> Tensor:
    """Which tokens top-k and top-p keep: bool [num_rows, vocab_size]."""
    vocab_size = probs.shape[-1]
    takes_any_rank = filters.top_k == vocab_size
    unlimited = takes_any_rank & filters.top_p.isinf()
    num_ranks = filters.max_top_k if filters.max_top_k < vocab_size else min(_NUCLEUS_GUESS, vocab_size)
    while True:
        values = probs.topk(num_ranks).values  # [num_rows, num_ranks], descending
        in_top_k = torch.arange(num_ranks, device=probs.device) < filters.top_k[:, None]
        ranked = values.double() * in_top_k
        reached = ranked.cumsum(-1)
        needed = filters.top_p * torch.where(takes_any_rank, 1.0, reached[:, -1])
        is_complete = torch.where(
            takes_any_rank, unlimited | (reached[:, -1] >= needed), filters.top_k <= num_ranks
        )
        if num_ranks == vocab_size or bool(is_complete.all()):
            break
        num_ranks = vocab_size
    num_kept = (in_top_k & (reached - ranked < needed[:, None])).sum(-1, keepdim=True).clamp_(min=1)
    edge = values.gather(1, num_kept - 1)  # [num_rows, 1], the probability of the last rank that is kept
    above = (probs > edge) | unlimited[:, None]
    at_edge = probs == edge
    num_kept_at_edge = num_kept - (values > edge).sum(-1, keepdim=True)
    if bool((at_edge.sum(-1, keepdim=True) > num_kept_at_edge).any()):
        at_edge &= at_edge.cumsum(-1) <= num_kept_at_edge
    return above | at_edge
