"""What a request brings to verification, and what it takes away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from dspine_cluster.engine.logit_rules import LogitRules
from dspine_cluster.types import SamplingParams


@dataclass(slots=True)
class Block:
    """One request's block of a round: its proposals, or none to decode plainly or to end a prefill.

    Row j of its `num_rows` rows of logits predicts the token after `token_ids + proposals[:j]`.
    """

    rules: LogitRules
    token_ids: Sequence[int]
    """All committed tokens, prompt first, anchor last."""
    proposals: Sequence[int] = ()
    """The proposals that this round verifies. For a request that samples without a seed their number must not
    depend on what the proposals are, or the output leaves the target's distribution."""
    draft_candidates: Tensor | npt.NDArray[np.int32] | None = None
    """Integers [num_proposals or more, K]: where the proposal distribution q of each position has its mass. Without
    it the proposals are taken as certain, q(x) = 1."""
    draft_probs: Tensor | npt.NDArray[np.float32] | None = None
    """float32, same shape: exactly the numbers of q that the proposals were sampled from."""
    is_cut: bool = False
    """The next proposal was to be verified, too, but the request's grammar forbids it: it counts as rejected, and q
    has a row of it."""

    def legal(self) -> Block:
        """The same with the proposals that the request's grammar allows, at most as many.

        What is proposed at a place depends on the tokens before it alone, so that sampling stays exact: the target has
        no mass on a drafted token that is illegal, which hence counts as rejected.
        """
        grammar = self.rules.grammar
        if grammar is None or not self.proposals:
            return self
        block = grammar.legal_block(self.token_ids, self.proposals)
        candidates, probs = self.draft_candidates, self.draft_probs
        if block.forced and candidates is not None and probs is not None:
            candidates, probs = torch.as_tensor(candidates).long().clone(), torch.as_tensor(probs).clone()
            candidates[block.forced, 0] = torch.tensor([block.tokens[place] for place in block.forced])
            probs[block.forced] = F.one_hot(torch.tensor(0), probs.shape[1]).to(probs.dtype)
        return replace(
            self,
            proposals=block.tokens,
            draft_candidates=candidates,
            draft_probs=probs,
            is_cut=block.is_cut,
        )

    @property
    def num_rows(self) -> int:
        return len(self.proposals) + 1

    @property
    def sampling(self) -> SamplingParams:
        return self.rules.sampling

    @property
    def output_index(self) -> int:
        """Output position that the first row predicts."""
        return len(self.token_ids) - self.rules.num_prompt_tokens

    def _write_distributions(self, candidates: npt.NDArray[np.int64], probs: npt.NDArray[np.float32]) -> None:
        """Into the first rows of zeros `[num_rows or more, K or more]`."""
        num_drafted = len(self.proposals)
        if self.draft_candidates is None or self.draft_probs is None:
            # The target has no mass where a certain proposal is illegal: nothing is to be taken off it.
            candidates[:num_drafted, 0], probs[:num_drafted, 0] = self.proposals, 1.0
            return
        num_drafted += self.is_cut
        width = self.draft_probs.shape[1]
        candidates[:num_drafted, :width] = self.draft_candidates[:num_drafted]
        probs[:num_drafted, :width] = self.draft_probs[:num_drafted]


def draft_distributions(blocks: Sequence[Block]) -> tuple[Tensor, Tensor]:
    """q of every row of the blocks, end to end: candidates int64 and probs float32 `[num_rows, K]`. The last row of a
    block has none unless a rejection there is certain."""
    width = max([1 if block.draft_probs is None else block.draft_probs.shape[1] for block in blocks])
    shape = (sum([block.num_rows for block in blocks]), width)
    candidates, probs = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
    start = 0
    for block in blocks:
        block._write_distributions(candidates[start:], probs[start:])
        start += block.num_rows
    return torch.from_numpy(candidates), torch.from_numpy(probs)


@dataclass(slots=True)
class Verdict:
    """What a block commits: its first `num_accepted` tokens are proposals, the last is the bonus token."""

    token_ids: tuple[int, ...]
    num_accepted: int
