"""Prompts whose output does not hang by rounding: other machines round otherwise, and tests must not care."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from dspine_cluster.engine.blocks import BlockBatch
from dspine_cluster.engine.grammar_state import CompiledGrammar, GrammarState
from dspine_cluster.engine.logit_rules import LogitRules
from dspine_cluster.engine.sampling import verify
from dspine_cluster.models.cache import SequenceCache
from dspine_cluster.models.target import TargetModel
from dspine_cluster.types import GenerateRequest

NOISE = 3e-4
NUM_TRIALS = 3


def is_decisive(
    target: TargetModel,
    request: GenerateRequest,
    token_ids: Sequence[int],
    mask_token_id: int,
    grammar: CompiledGrammar | None = None,
) -> bool:
    """Whether the greedy or seeded output `token_ids` stays the same when all logits are disturbed a little."""
    prompt, output = list(request.prompt_ids), list(token_ids)
    ids = torch.tensor(prompt + output[:-1])
    with torch.no_grad():
        hidden = target(ids, torch.arange(len(ids)), SequenceCache(1, len(ids))).hidden
        logits = target.logits(hidden[len(prompt) - 1 :])
    random = torch.Generator().manual_seed(0)
    for _ in range(NUM_TRIALS):
        disturbed = logits + NOISE * torch.randn(logits.shape, generator=random)
        rules = LogitRules(
            request.sampling,
            request.stop,
            num_prompt_tokens=len(prompt),
            eos_token_ids=target.config.eos_token_ids,
            mask_token_id=mask_token_id,
            vocab_size=target.config.vocab_size,
            device=logits.device,
            grammar=None if grammar is None else GrammarState(grammar, len(prompt)),
        )
        blocks = BlockBatch()
        blocks.append(rules, prompt, output[:-1])
        verdicts = verify(partial(_rows, disturbed), blocks, random)
        if verdicts.committed(0) != tuple(output):
            return False
    return True


def _rows(logits: Tensor, start: int, end: int) -> Tensor:
    return logits[start:end]
