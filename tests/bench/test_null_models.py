from __future__ import annotations

import torch

from dspine_cluster.bench.null_models import DRAFTER_CONFIG, NullDrafter, NullTarget
from dspine_cluster.bench.stopwatch import Stopwatch
from dspine_cluster.models.draft_sampling import DraftSampling
from dspine_cluster.models.drafter import DraftContext


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
