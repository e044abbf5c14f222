"""What a request brings to verification, and what it takes away."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from msgspec import Struct
from msgspec.structs import replace
from torch import Tensor

from dspine_cluster.engine.logit_rules import LogitRules
from dspine_cluster.types import SamplingParams


class Block(Struct):
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

    def draft_distributions(self) -> tuple[Tensor, Tensor]:
        """Candidates int64 and q float32 of each row, `[num_rows, K]`; the last row has none unless a rejection there
        is certain."""
        num_proposals = len(self.proposals)
        if self.draft_candidates is None or self.draft_probs is None:
            # The target has no mass where a certain proposal is illegal: nothing is to be taken off it.
            candidates = torch.tensor(self.proposals, dtype=torch.int64)[:, None]
            probs = torch.ones(num_proposals, 1)
        else:
            num_drafted = num_proposals + self.is_cut
            candidates = torch.as_tensor(self.draft_candidates[:num_drafted]).long()
            probs = torch.as_tensor(self.draft_probs[:num_drafted])
        padding = (0, 0, 0, self.num_rows - len(candidates))
        return F.pad(candidates, padding), F.pad(probs, padding)


class Verdict(Struct):
    """What a block commits: its first `num_accepted` tokens are proposals, the last is the bonus token."""

    token_ids: tuple[int, ...]
    num_accepted: int
