"""What a request does to the target's logits before any distribution is formed: masks, bias, penalties.

Every rule holds at each position of a block, given the tokens before it, proposals included.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dspine_cluster.core.end_of_request import end_token_ids
from dspine_cluster.engine.grammar_state import GrammarState
from dspine_cluster.types import SamplingParams, StopConditions


class LogitRules:
    """The masks, bias and penalties of one request, with their tensors ready on the device.

    Made once when the request is admitted. The token counts of the penalties follow the committed tokens by
    themselves: a request that resumes elsewhere, or after preemption, builds its rules anew and loses nothing.
    """

    def __init__(
        self,
        sampling: SamplingParams,
        stop: StopConditions,
        *,
        num_prompt_tokens: int,
        eos_token_ids: Collection[int],
        mask_token_id: int | None,
        vocab_size: int,
        device: torch.device,
        grammar: GrammarState | None = None,
    ) -> None:
        self.sampling = sampling
        self.grammar = grammar
        self.end_conditions = stop if grammar is None else replace(stop, min_tokens=0, ignore_eos=False)
        """When committed tokens end the request: a grammar allows end tokens only where it ends, or nothing else."""
        self.num_prompt_tokens = num_prompt_tokens
        self._min_tokens = stop.min_tokens
        self.mask_token_id = mask_token_id
        end_ids, allowed = end_token_ids(stop, eos_token_ids), sampling.allowed_token_ids
        self._end_ids = torch.tensor(sorted(end_ids), device=device).long()
        self._ends_alone = allowed is not None and end_ids.issuperset(set(allowed) - {mask_token_id})
        self._forbidden: Tensor | None = None
        if allowed is not None:
            self._forbidden = torch.ones(vocab_size, device=device, dtype=torch.bool)
            self._forbidden[list(allowed)] = False
        bias = dict(sampling.logit_bias)
        self._bias_ids = torch.tensor(list(bias), device=device).long()
        self._bias = torch.tensor(list(bias.values()), device=device, dtype=torch.float32)
        self._counts = _TokenCounts(vocab_size, device) if sampling.has_penalties else None
        is_limited = allowed is not None or bool(sampling.bad_words) or grammar is not None
        self._always_apply = bool(bias) or sampling.has_penalties or is_limited

    def apply_at(self, output_index: int) -> bool:
        """Whether `apply` can do more than mask, for a block whose first row predicts that output position."""
        return self._always_apply or output_index < self._min_tokens

    def apply(self, logits: Tensor, token_ids: Sequence[int], proposals: Sequence[int]) -> None:
        """Change `logits` [len(proposals) + 1, vocab_size] float32 in place.

        `token_ids` are the committed tokens, prompt first; row j predicts the token after
        `token_ids + proposals[:j]`.
        """
        if self.mask_token_id is not None:
            logits[:, self.mask_token_id] = -torch.inf
        num_output = len(token_ids) - self.num_prompt_tokens
        num_rows_before_min = max(min(self._min_tokens - num_output, len(logits)), 0)
        if self.grammar is not None:
            self._mask_illegal(logits, self.grammar, token_ids, proposals, num_rows_before_min)
        elif num_rows_before_min and len(self._end_ids) and not self._ends_alone:
            logits[:num_rows_before_min, self._end_ids] = -torch.inf
        if self._forbidden is not None:
            logits.masked_fill_(self._forbidden, -torch.inf)
        if len(self._bias_ids):
            logits[:, self._bias_ids] += self._bias
        if self._counts is not None:
            self._counts.catch_up(token_ids, self.num_prompt_tokens)
            self._penalise(logits, self._counts, proposals)
        if self.sampling.bad_words:
            self._ban(logits, token_ids, proposals)

    def _ban(self, logits: Tensor, token_ids: Sequence[int], proposals: Sequence[int]) -> None:
        """Mask what would complete a bad word of the output, in rows where something else is left."""
        words = self.sampling.bad_words
        num_before = max(map(len, words)) - 1
        first = max(len(token_ids) - num_before, self.num_prompt_tokens)
        output = [*token_ids[first:], *proposals]
        num_committed = len(output) - len(proposals)
        found = [
            (row, word[-1])
            for row in range(len(logits))
            for word in words
            if output[max(num_committed + row - len(word) + 1, 0) : num_committed + row] == list(word[:-1])
        ]
        if found:
            rows, ids = torch.tensor(found, device=logits.device).unbind(1)
            without = logits.index_put((rows, ids), logits.new_full((), -torch.inf))
            is_left = (without > -torch.inf).any(-1, keepdim=True)
            logits.copy_(torch.where(is_left, without, logits))

    def _mask_illegal(
        self,
        logits: Tensor,
        grammar: GrammarState,
        token_ids: Sequence[int],
        proposals: Sequence[int],
        num_rows_before_min: int,
    ) -> None:
        """`min_tokens` keeps end tokens out only where the grammar leaves another choice."""
        legal = grammar.legal_tokens(token_ids, proposals, logits.device)
        early = legal[:num_rows_before_min]
        others = early.index_fill(1, self._end_ids, False)
        early.copy_(torch.where(others.any(-1, keepdim=True), others, early))
        logits.masked_fill_(~legal, -torch.inf)

    def _penalise(self, logits: Tensor, counts: _TokenCounts, proposals: Sequence[int]) -> None:
        """Repetition over prompt and output (Keskar et al. 2019); frequency and presence over output (OpenAI)."""
        ids = torch.tensor(proposals, device=logits.device).long()
        rows, earlier = torch.tril_indices(len(logits), len(ids), -1, device=logits.device)
        output_counts = counts.output.repeat(len(logits), 1)  # [num_rows, vocab_size]
        output_counts.index_put_((rows, ids[earlier]), output_counts.new_ones(()), accumulate=True)
        if self.sampling.repetition_penalty != 1.0:
            penalty = self.sampling.repetition_penalty
            scaled = torch.where(logits > 0, logits / penalty, logits * penalty)
            logits.copy_(torch.where((output_counts > 0) | counts.prompt_seen, scaled, logits))
        logits -= self.sampling.frequency_penalty * output_counts
        logits -= self.sampling.presence_penalty * (output_counts > 0)


class _TokenCounts:
    """How often each token occurred in a request's output, and whether it did in its prompt."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.output = torch.zeros(vocab_size, device=device)
        self.prompt_seen = torch.zeros(vocab_size, device=device, dtype=torch.bool)
        self._num_counted = 0

    def catch_up(self, token_ids: Sequence[int], num_prompt_tokens: int) -> None:
        """Count the tokens of `token_ids` that earlier calls had not seen."""
        assert len(token_ids) >= self._num_counted, "committed tokens never disappear"
        fresh = torch.tensor(token_ids[self._num_counted :], device=self.output.device).long()
        num_fresh_prompt = max(num_prompt_tokens - self._num_counted, 0)
        self.prompt_seen[fresh[:num_fresh_prompt]] = True
        self.output += torch.bincount(fresh[num_fresh_prompt:], minlength=len(self.output))
        self._num_counted = len(token_ids)
