"""What requests bring to verification, and what they take away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from dspine_cluster.engine.grammar_state import LegalBlock
from dspine_cluster.engine.logit_rules import LogitRules


class DrawnFrom(Protocol):
    """What the proposals of a block were sampled from: the distribution q of each position, without which they are
    taken as certain, q(x) = 1."""

    @property
    def candidates(self) -> Tensor | npt.NDArray[np.int32] | None:
        """Integers [num_proposals or more, K]: where q has its mass."""

    @property
    def probs(self) -> Tensor | npt.NDArray[np.float32] | None:
        """float32, same shape: exactly the numbers that were sampled from."""


class Distributions(NamedTuple):
    """A `DrawnFrom` of its own."""

    candidates: Tensor
    probs: Tensor


@dataclass(slots=True)
class BlockBatch:
    """The blocks of a round in columns: of each request its proposals, or none to decode plainly or to end a prefill.

    Row j of a block's `num_rows` rows of logits predicts the token after its context and its first j proposals.
    """

    rules: list[LogitRules] = field(default_factory=list)
    contexts: list[Sequence[int]] = field(default_factory=list)
    """All committed tokens of each, prompt first, anchor last."""
    num_rows: list[int] = field(default_factory=list)
    """Of each the number of proposals that this round verifies, and one. For a request that samples without a seed it
    must not depend on what the proposals are, or the output leaves the target's distribution."""
    tokens: list[int] = field(default_factory=list)
    """The anchor of each and its proposals, end to end."""
    drafts: list[DrawnFrom | None] = field(default_factory=list)
    cut: set[int] = field(default_factory=set)
    """The blocks whose next proposal was to be verified, too, but their grammars forbid it: it counts as rejected, and
    q has a row of it."""

    def append(
        self,
        rules: LogitRules,
        context: Sequence[int],
        proposals: Sequence[int] = (),
        draft: DrawnFrom | None = None,
        *,
        is_cut: bool = False,
    ) -> None:
        if is_cut:
            self.cut.add(len(self.rules))
        self.rules.append(rules)
        self.contexts.append(context)
        self.num_rows.append(len(proposals) + 1)
        self.tokens += (context[-1], *proposals)
        self.drafts.append(draft)

    def __len__(self) -> int:
        return len(self.rules)

    @property
    def starts(self) -> list[int]:
        """The first row of each."""
        return [0, *accumulate(self.num_rows)][:-1]

    @property
    def output_indices(self) -> list[int]:
        """Output position that each one's first row predicts."""
        return [
            len(context) - rules.num_prompt_tokens
            for context, rules in zip(self.contexts, self.rules, strict=True)
        ]

    @property
    def proposals(self) -> list[list[int]]:
        """Those of each."""
        return [
            self.tokens[start + 1 : start + count]
            for start, count in zip(self.starts, self.num_rows, strict=True)
        ]

    def select(self, numbers: Sequence[int]) -> BlockBatch:
        """Some of them."""
        starts, num_rows = self.starts, self.num_rows
        tokens: list[int] = []
        for i in numbers:
            tokens += self.tokens[starts[i] : starts[i] + num_rows[i]]
        return BlockBatch(
            [self.rules[i] for i in numbers],
            [self.contexts[i] for i in numbers],
            [num_rows[i] for i in numbers],
            tokens,
            [self.drafts[i] for i in numbers],
            {place for place, i in enumerate(numbers) if i in self.cut} if self.cut else set(),
        )

    def legal(self) -> BlockBatch:
        """The same with the proposals that requests' grammars allow, at most as many.

        What is proposed at a place depends on the tokens before it alone, so that sampling stays exact: the target has
        no mass on a drafted token that is illegal, which hence counts as rejected.
        """
        batch = BlockBatch()
        columns = zip(self.rules, self.contexts, self.proposals, self.drafts, strict=True)
        for rules, context, proposals, draft in columns:
            if rules.grammar is None or not proposals:
                batch.append(rules, context, proposals, draft)
            else:
                block = rules.grammar.legal_block(context, proposals)
                batch.append(rules, context, block.tokens, _forced(draft, block), is_cut=block.is_cut)
        return batch


def _forced(draft: DrawnFrom | None, block: LegalBlock) -> DrawnFrom | None:
    """`draft` with certain proposals where the grammar leaves no other."""
    if draft is None or draft.candidates is None or draft.probs is None or not block.forced:
        return draft
    candidates, probs = torch.as_tensor(draft.candidates).long().clone(), torch.as_tensor(draft.probs).clone()
    candidates[block.forced, 0] = torch.tensor([block.tokens[place] for place in block.forced])
    probs[block.forced] = F.one_hot(torch.tensor(0), probs.shape[1]).to(probs.dtype)
    return Distributions(candidates, probs)


def draft_distributions(blocks: BlockBatch) -> tuple[Tensor, Tensor]:
    """q of every row of the blocks, end to end: candidates int64 and probs float32 `[num_rows, K]`, K > 0. The last
    row of a block has none unless a rejection there is certain."""
    # A draft without proposals may have no candidates either.
    most = max([1, *[x.probs.shape[1] for x in blocks.drafts if x is not None and x.probs is not None]])
    shape = (sum(blocks.num_rows), most)
    candidates, probs = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
    columns = zip(blocks.starts, blocks.num_rows, blocks.drafts, strict=True)
    for number, (start, count, draft) in enumerate(columns):
        if draft is None or draft.candidates is None or draft.probs is None:
            # The target has no mass where a certain proposal is illegal: nothing is to be taken off it.
            rows = slice(start, start + count - 1)
            candidates[rows, 0], probs[rows, 0] = blocks.tokens[start + 1 : start + count], 1.0
        else:
            num_drafted = count if number in blocks.cut else count - 1
            rows, width = slice(start, start + num_drafted), draft.probs.shape[1]
            candidates[rows, :width] = draft.candidates[:num_drafted]
            probs[rows, :width] = draft.probs[:num_drafted]
    return torch.from_numpy(candidates), torch.from_numpy(probs)


@dataclass(slots=True)
class Verdicts:
    """What blocks commit: of each its first `num_accepted` proposals, then the bonus token."""

    tokens: tuple[int, ...]
    """One for each row of the blocks, end to end. Those behind a block's bonus token mean nothing."""
    starts: list[int]
    """The first row of each block."""
    num_accepted: list[int]

    def __len__(self) -> int:
        return len(self.starts)

    def committed(self, number: int) -> tuple[int, ...]:
        """The tokens of one block."""
        start = self.starts[number]
        return self.tokens[start : start + self.num_accepted[number] + 1]
