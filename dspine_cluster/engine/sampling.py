"""Verification: from the target's logits over a batch of blocks to the tokens each request commits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto

import torch
from torch import Tensor

from dspine_cluster.engine.blocks import Block, Verdict
from dspine_cluster.engine.choosing import choose_greedy, choose_seeded, choose_unseeded
from dspine_cluster.engine.filters import FilterRows, target_probs
from dspine_cluster.engine.inference import in_inference_mode
from dspine_cluster.types import SamplingParams

MAX_ROWS = 256
"""Rows of logits that are alive at once."""


@in_inference_mode
def verify(
    logits_of: Callable[[int, int], Tensor],
    blocks: Sequence[Block],
    generator: torch.Generator,
    *,
    max_rows: int = MAX_ROWS,
) -> list[Verdict]:
    """Decide all `blocks`, in order, in chunks of whole blocks of at most `max_rows` rows.

    `logits_of(start, end)` gives the target's raw logits [end - start, vocab_size] of the rows start .. end - 1,
    blocks laid end to end; it may apply the head to that many hidden states, so that no more logits are alive.
    They are not modified. A request with temperature 0 commits the argmax of each row; one with a seed the argmax
    with the noise of its seed, hence the same tokens whatever was proposed; any other follows speculative
    sampling, the only reader of `generator` (on any device).
    """
    verdicts: list[Verdict] = []
    start = 0
    for chunk in _chunks(blocks, max_rows):
        end = start + sum(block.num_rows for block in chunk)
        verdicts += _verify_chunk(logits_of(start, end), chunk, generator)
        start = end
    return verdicts


def apply_rules(logits: Tensor, blocks: Sequence[Block]) -> Tensor:
    """`logits` [num_rows, vocab_size] as float32, with each request's masks, bias and penalties applied to a copy."""
    masks = {block.rules.mask_token_id for block in blocks}
    needs_own = [len(masks) > 1 or block.rules.apply_at(block.output_index) for block in blocks]
    if masks == {None} and not any(needs_own):
        return logits.float()
    processed = logits.to(torch.float32, copy=True)
    shared = masks.pop() if len(masks) == 1 else None
    if shared is not None:
        processed[:, shared] = -torch.inf  # one write for all requests, which mostly have no other rule
    for needs, rows, block in zip(needs_own, torch.split(processed, _num_rows(blocks)), blocks, strict=True):
        if needs:
            block.rules.apply(rows, block.token_ids, block.proposals)
    return processed


def _verify_chunk(logits: Tensor, blocks: Sequence[Block], generator: torch.Generator) -> list[Verdict]:
    processed = apply_rules(logits, blocks)
    rows = torch.split(processed, _num_rows(blocks))
    rules = [_rule_of(block.sampling) for block in blocks]
    verdicts: dict[int, Verdict] = {}
    for rule in dict.fromkeys(rules):
        members = [i for i in range(len(blocks)) if rules[i] is rule]
        own_blocks = [blocks[i] for i in members]
        own_logits = processed if len(members) == len(blocks) else torch.cat([rows[i] for i in members])
        verdicts.update(zip(members, _choose(rule, own_logits, own_blocks, generator), strict=True))
    return [verdicts[i] for i in range(len(blocks))]


class _Rule(Enum):
    GREEDY = auto()
    SEEDED = auto()
    UNSEEDED = auto()


def _rule_of(sampling: SamplingParams) -> _Rule:
    if sampling.is_greedy:
        return _Rule.GREEDY
    return _Rule.UNSEEDED if sampling.seed is None else _Rule.SEEDED


def _choose(
    rule: _Rule, logits: Tensor, blocks: Sequence[Block], generator: torch.Generator
) -> list[Verdict]:
    if rule is _Rule.GREEDY:
        return choose_greedy(logits, blocks)
    params = [block.sampling for block in blocks]
    vocab_size = logits.shape[-1]
    filters = FilterRows.build(params, _num_rows(blocks), vocab_size=vocab_size, device=logits.device)
    probs = target_probs(logits, filters)
    if rule is _Rule.SEEDED:
        return choose_seeded(probs, blocks)
    return choose_unseeded(probs, blocks, generator)


def _chunks(blocks: Sequence[Block], max_rows: int) -> Iterator[list[Block]]:
    chunk: list[Block] = []
    num_rows = 0
    for block in blocks:
        if chunk and num_rows + block.num_rows > max_rows:
            yield chunk
            chunk, num_rows = [], 0
        chunk.append(block)
        num_rows += block.num_rows
    if chunk:
        yield chunk


def _num_rows(blocks: Sequence[Block]) -> list[int]:
    return [block.num_rows for block in blocks]
