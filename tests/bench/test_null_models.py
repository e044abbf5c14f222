from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from dspine_cluster.bench.null_models import DRAFTER_CONFIG, VOCAB_SIZE, NullDrafter, NullTarget, look_up
from dspine_cluster.bench.stopwatch import Stopwatch
from dspine_cluster.engine.blocks import BlockBatch
from dspine_cluster.engine.logit_rules import LogitRules
from dspine_cluster.engine.sampling import verify
from dspine_cluster.models.draft_sampling import DraftSampling
from dspine_cluster.models.drafter import DraftContext
from dspine_cluster.types import SamplingParams, StopConditions


def test_proposals_are_the_target_s_own_tokens_up_to_a_wrong_one_and_more_than_a_few_are_right() -> None:
    positions = torch.arange(100, 400)
    nothing = torch.zeros(len(positions), 1, dtype=torch.int64)
    pages = torch.zeros(1, 1, 16, 1, DRAFTER_CONFIG.head_dim)
    context = DraftContext(pages, pages, nothing, nothing[:, 0], positions)
    draft = NullDrafter(Stopwatch()).draft(
        nothing[:, 0], positions, context, DraftSampling.greedy(len(positions))
    )
    target = NullTarget(Stopwatch())
    places = positions[:, None] + torch.arange(DRAFTER_CONFIG.num_proposals)
    chosen = (
        target.logits(target(places.flatten(), places.flatten(), None).hidden).argmax(-1).view(places.shape)
    )
    is_right = draft.tokens == chosen
    assert is_right.cumprod(1).eq(is_right).all()
    assert 3.0 < is_right.sum(1).float().mean() < 7.0
    assert (draft.candidates[..., 0] == draft.tokens).all()
    assert (draft.probs[..., 0] == 1.0).all()


def rows_of(logits: Tensor, start: int, end: int) -> Tensor:
    return logits[start:end]


def test_looked_up_verdicts_are_those_that_are_chosen_from_the_target_s_logits() -> None:
    target, random = NullTarget(Stopwatch()), torch.Generator()
    for temperature in (0.0, 1.0):
        sampling, stop = SamplingParams(temperature=temperature), StopConditions(max_tokens=64)
        rules = LogitRules(
            sampling,
            stop,
            num_prompt_tokens=4,
            eos_token_ids=(),
            mask_token_id=None,
            vocab_size=VOCAB_SIZE,
            device=torch.device("cpu"),
        )
        for start in range(8, 200, 7):
            positions = torch.arange(start - 1, start + 4)
            logits = target.logits(target(positions, positions, None).hidden)
            right = logits.argmax(-1).tolist()
            for num_right in range(5):
                wrong = [token + 1 for token in right[num_right:-1]]
                blocks = BlockBatch()
                blocks.append(rules, [5] * start, [*right[:num_right], *wrong])
                chosen = verify(partial(rows_of, logits), blocks, random)
                found = look_up(blocks)
                assert chosen.num_accepted == found.num_accepted
                assert chosen.committed(0) == found.committed(0)
