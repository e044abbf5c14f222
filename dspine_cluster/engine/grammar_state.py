"""Which tokens a request's grammar allows at every position of a block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    import xgrammar


@dataclass(frozen=True, slots=True, eq=False)
class CompiledGrammar:
    """A grammar compiled for the target's tokens; requests share it."""

    compiled: xgrammar.CompiledGrammar
    textless_ids: frozenset[int]
    """Tokens that no grammar can ask for."""
    vocab_size: int
    max_forced_output_tokens: int
    """With more output nothing is forced: finding it could take long."""


@dataclass(frozen=True, slots=True)
class LegalBlock:
    """Proposals that a grammar allows."""

    tokens: list[int]
    forced: list[int]
    """The places among them that the grammar itself proposes, with certainty, whatever was drafted."""
    is_cut: bool
    """The drafted proposal at the next place is illegal."""


def num_words(vocab_size: int) -> int:
    """int32 words of a mask, a bit a token."""
    return -(-vocab_size // 32)


class GrammarState:
    """How far one request's output has come in its grammar.

    Like token counts it follows the committed tokens by itself, so that a request that resumes elsewhere, or after
    preemption, loses nothing. Where the grammar is complete, end tokens are legal. Where nothing is, because a
    grammar can lead nowhere, they are the only ones, so that there always is a token.
    """

    def __init__(self, grammar: CompiledGrammar, num_prompt_tokens: int) -> None:
        import xgrammar

        self._matcher = xgrammar.GrammarMatcher(grammar.compiled)
        self._end_ids: list[int] = self._matcher.stop_token_ids
        self._textless_ids = grammar.textless_ids
        self._vocab_size = grammar.vocab_size
        self._num_followed = num_prompt_tokens
        self._forces_until = num_prompt_tokens + grammar.max_forced_output_tokens
        self._is_over = False

    def legal_block(self, token_ids: Sequence[int], proposals: Sequence[int]) -> LegalBlock:
        """What to verify instead of `proposals` after the committed `token_ids`, prompt first: at most as many.

        Where the grammar leaves one text only, its tokens are proposed, certain, instead of what was drafted. Drafted
        proposals are kept as long as they follow what is proposed.
        """
        self._catch_up(token_ids)
        tokens: list[int] = []
        forced: list[int] = []
        is_cut = False
        while len(tokens) < len(proposals):
            certain = self._forced()[: len(proposals) - len(tokens)]
            if num_forced := self._walk(certain):
                forced += range(len(tokens), len(tokens) + num_forced)
                tokens += certain[:num_forced]
            elif tokens != proposals[: len(tokens)]:
                break
            elif self._walk(proposals[len(tokens) : len(tokens) + 1]):
                tokens.append(proposals[len(tokens)])
            else:
                is_cut = True
                break
        self._matcher.rollback(len(tokens))
        return LegalBlock(tokens, forced, is_cut)

    def legal_tokens(
        self, token_ids: Sequence[int], proposals: Sequence[int], device: torch.device
    ) -> Tensor:
        """Which tokens may follow `token_ids + proposals[:j]`, all of them legal: bool
        [len(proposals) + 1, vocab_size]."""
        self._catch_up(token_ids)
        masks = torch.zeros(len(proposals) + 1, num_words(self._vocab_size), dtype=torch.int32)
        num_walked = 0
        for row in range(len(masks)):
            if not (self._is_over or self._matcher.is_terminated()):
                self._matcher.fill_next_token_bitmask(masks, row)
            if row < len(proposals):
                num_walked += self._walk(proposals[row : row + 1])
        self._matcher.rollback(num_walked)
        for row in torch.nonzero(~masks.any(-1)).flatten().tolist():
            for token in self._end_ids:
                masks[row, token // 32] |= _BIT[token % 32]
        bits = masks.to(device)[:, :, None] >> torch.arange(32, dtype=torch.int32, device=device)
        return (bits & 1).bool().flatten(1)[:, : self._vocab_size]

    def _forced(self) -> list[int]:
        if self._is_over or self._matcher.is_terminated() or self._num_followed >= self._forces_until:
            return []
        return self._matcher.find_jump_forward_tokens()

    def _catch_up(self, token_ids: Sequence[int]) -> None:
        assert len(token_ids) >= self._num_followed, "committed tokens never disappear"
        fresh = token_ids[self._num_followed :]
        self._num_followed = len(token_ids)
        if self._walk(fresh) < len(fresh):
            self._is_over = True

    def _walk(self, tokens: Sequence[int]) -> int:
        """Take tokens up to the first that is illegal; how many."""
        for num_taken, token in enumerate(tokens):
            # Asked first what xgrammar would log.
            is_refused = self._is_over or token in self._textless_ids or self._matcher.is_terminated()
            if is_refused or not self._matcher.accept_token(token):
                return num_taken
        return len(tokens)


_BIT = [1 << bit if bit < 31 else -(1 << 31) for bit in range(32)]
"""Of a word of a mask, int32."""
