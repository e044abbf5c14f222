"""Blocks and verdicts one by one, for tests of what takes and gives them in columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dspine_cluster.engine.blocks import BlockBatch, DrawnFrom, Verdicts
from dspine_cluster.engine.choosing import Choice
from dspine_cluster.engine.logit_rules import LogitRules
from dspine_cluster.engine.sampling import MAX_ROWS, verify
from dspine_cluster.types import SamplingParams


@dataclass(frozen=True)
class Block:
    rules: LogitRules
    token_ids: Sequence[int]
    proposals: Sequence[int] = ()
    draft: DrawnFrom | None = None
    is_cut: bool = False

    @property
    def num_rows(self) -> int:
        return len(self.proposals) + 1

    @property
    def sampling(self) -> SamplingParams:
        return self.rules.sampling


class Verdict(NamedTuple):
    token_ids: tuple[int, ...]
    num_accepted: int


def batch_of(blocks: Sequence[Block]) -> BlockBatch:
    batch = BlockBatch()
    for x in blocks:
        batch.append(x.rules, x.token_ids, x.proposals, x.draft, is_cut=x.is_cut)
    return batch


def verdicts_of(verdicts: Verdicts) -> list[Verdict]:
    return [
        Verdict(verdicts.committed(number), num_accepted)
        for number, num_accepted in enumerate(verdicts.num_accepted)
    ]


def verify_each(
    logits: Tensor, blocks: Sequence[Block], generator: torch.Generator, *, max_rows: int = MAX_ROWS
) -> list[Verdict]:
    """`verify` with logits that are there."""
    batch = batch_of(blocks)
    return verdicts_of(verify(lambda start, end: logits[start:end], batch, generator, max_rows=max_rows))


def choose_each(
    choose: Callable[..., Choice], scores: Tensor, blocks: Sequence[Block], *options: torch.Generator
) -> list[Verdict]:
    """One of the rules of `choosing`."""
    batch = batch_of(blocks)
    tokens, num_accepted = choose(scores, batch, *options)
    return verdicts_of(Verdicts(tuple(tokens), batch.starts, num_accepted))
