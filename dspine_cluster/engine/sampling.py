"""Verification: from the target's logits over a batch of blocks to the tokens each request commits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum, auto

import numpy as np
import torch
from torch import Tensor

from dspine_cluster.engine.blocks import BlockBatch, Verdicts
from dspine_cluster.engine.choosing import Choice, choose_greedy, choose_seeded, choose_unseeded
from dspine_cluster.engine.filters import FilterRows, target_probs
from dspine_cluster.engine.inference import in_inference_mode
from dspine_cluster.types import SamplingParams

MAX_ROWS = 256
"""Rows of logits that are alive at once."""


@in_inference_mode
def verify(
    logits_of: Callable[[int, int], Tensor],
    blocks: BlockBatch,
    generator: torch.Generator,
    *,
    max_rows: int = MAX_ROWS,
) -> Verdicts:
    """Decide all `blocks`, in order, in chunks of whole blocks of at most `max_rows` rows.

    `logits_of(start, end)` gives the target's raw logits [end - start, vocab_size] of the rows start .. end - 1,
    blocks laid end to end; it may apply the head to that many hidden states, so that no more logits are alive.
    They are not modified. A request with temperature 0 commits the argmax of each row; one with a seed the argmax
    with the noise of its seed, hence the same tokens whatever was proposed; any other follows speculative
    sampling, the only reader of `generator` (on any device).
    """
    tokens: list[int] = []
    num_accepted: list[int] = []
    for chunk in _chunks(blocks, max_rows):
        start, end = len(tokens), len(tokens) + sum(chunk.num_rows)
        choice = _verify_chunk(logits_of(start, end), chunk, generator)
        tokens += choice.tokens
        num_accepted += choice.num_accepted
    return Verdicts(tuple(tokens), blocks.starts, num_accepted)


def apply_rules(logits: Tensor, blocks: BlockBatch) -> Tensor:
    """`logits` [num_rows, vocab_size] as float32, with each request's masks, bias and penalties applied to a copy."""
    masks = {rules.mask_token_id for rules in blocks.rules}
    needing = [
        i
        for i, (rules, index) in enumerate(zip(blocks.rules, blocks.output_indices, strict=True))
        if len(masks) > 1 or rules.apply_at(index)
    ]
    if masks == {None} and not needing:
        return logits.float()
    processed = logits.to(torch.float32, copy=True)
    shared = masks.pop() if len(masks) == 1 else None
    if shared is not None:
        processed[:, shared] = -torch.inf  # one write for all requests, which mostly have no other rule
    if needing:
        starts, proposals = blocks.starts, blocks.proposals
        for i in needing:
            rows = processed[starts[i] : starts[i] + blocks.num_rows[i]]
            blocks.rules[i].apply(rows, blocks.contexts[i], proposals[i])
    return processed


def _verify_chunk(logits: Tensor, blocks: BlockBatch, generator: torch.Generator) -> Choice:
    processed = apply_rules(logits, blocks)
    rules = [_rule_of(own.sampling) for own in blocks.rules]
    kinds = list(dict.fromkeys(rules))
    if len(kinds) == 1:
        return _choose(kinds[0], processed, blocks, generator)
    numbers = [kinds.index(rule) for rule in rules]
    of_rows = np.array(numbers).repeat(blocks.num_rows)
    order = of_rows.argsort(kind="stable")
    by_kind = processed.index_select(0, torch.from_numpy(order).to(processed.device))
    tokens: list[int] = []
    num_accepted = [0] * len(blocks)
    for number, own_logits in enumerate(torch.split(by_kind, np.bincount(of_rows).tolist())):
        members = [i for i, own in enumerate(numbers) if own == number]
        choice = _choose(kinds[number], own_logits, blocks.select(members), generator)
        tokens += choice.tokens
        for i, count in zip(members, choice.num_accepted, strict=True):
            num_accepted[i] = count
    in_order = np.empty(len(order), np.int64)
    in_order[order] = tokens
    return Choice(in_order.tolist(), num_accepted)


class _Rule(Enum):
    GREEDY = auto()
    SEEDED = auto()
    UNSEEDED = auto()


def _rule_of(sampling: SamplingParams) -> _Rule:
    if sampling.is_greedy:
        return _Rule.GREEDY
    return _Rule.UNSEEDED if sampling.seed is None else _Rule.SEEDED


def _choose(rule: _Rule, logits: Tensor, blocks: BlockBatch, generator: torch.Generator) -> Choice:
    if rule is _Rule.GREEDY:
        return choose_greedy(logits, blocks)
    params = [rules.sampling for rules in blocks.rules]
    vocab_size = logits.shape[-1]
    filters = FilterRows.build(params, blocks.num_rows, vocab_size=vocab_size, device=logits.device)
    probs = target_probs(logits, filters)
    if rule is _Rule.SEEDED:
        return choose_seeded(probs, blocks)
    return choose_unseeded(probs, blocks, generator)


def _chunks(blocks: BlockBatch, max_rows: int) -> Iterator[BlockBatch]:
    if not len(blocks):
        return
    first = num_rows = 0
    for number, count in enumerate(blocks.num_rows):
        if num_rows and num_rows + count > max_rows:
            yield blocks.select(range(first, number))
            first, num_rows = number, 0
        num_rows += count
    yield blocks.select(range(first, len(blocks))) if first else blocks
