from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from dspine_cluster.models.dflash import DFlash
from dspine_cluster.models.draft_sampling import DraftSampling
from dspine_cluster.models.drafter import DraftOutput
from dspine_cluster.models.noise import gumbel
from tests.models.drafter_cases import (
    SLIDING,
    Block,
    anchors_of,
    dense_logits,
    dense_states,
    paged_context,
    random_block,
    random_drafter,
    sampling_of,
    small_config,
)


def random_dflash(**changes: Any) -> DFlash:
    drafter = random_drafter(small_config("dflash", **changes))
    assert isinstance(drafter, DFlash)
    return drafter


def draft(drafter: DFlash, block: Block, sampling: DraftSampling) -> DraftOutput:
    anchors, positions = anchors_of([block])
    return drafter.draft(anchors, positions, paged_context(drafter, [block]), sampling)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_q_is_the_renormalised_top_of_the_tempered_softmax(temperature: float) -> None:
    drafter = random_dflash()
    block = random_block(drafter.config, 20)
    logits = dense_logits(drafter, dense_states(drafter, block)[0][1:])
    output = draft(drafter, block, sampling_of([temperature], [1]))
    tempered = (logits / temperature).softmax(-1).gather(-1, output.candidates[0])
    torch.testing.assert_close(output.probs[0], tempered / tempered.sum(-1, keepdim=True), atol=1e-5, rtol=0)


def test_temperature_zero_takes_the_best_token_everywhere() -> None:
    drafter = random_dflash()
    block = random_block(drafter.config, 20)
    logits = dense_logits(drafter, dense_states(drafter, block)[0][1:])
    assert torch.equal(draft(drafter, block, DraftSampling.greedy(1)).tokens[0], logits.argmax(-1))


def test_a_seeded_token_is_the_best_of_log_q_and_its_noise() -> None:
    drafter = random_dflash()
    output = draft(drafter, random_block(drafter.config, 20), sampling_of([1.3], [77], [40]))
    indices = 40 + torch.arange(drafter.config.num_proposals)
    noise = gumbel(torch.tensor(77), indices[:, None], output.candidates[0])
    best = (output.probs[0].log() + noise).argmax(-1, keepdim=True)
    assert torch.equal(output.tokens[0], output.candidates[0].gather(-1, best)[:, 0])
    assert not torch.equal(output.tokens[0], output.candidates[0][:, 0])


@pytest.mark.parametrize(("is_causal", "is_same"), [(True, True), (False, False)])
def test_later_positions_matter_only_where_the_block_is_bidirectional(is_causal: bool, is_same: bool) -> None:
    drafter = random_dflash(is_causal=(is_causal,) * 3)
    shorter = DFlash(replace(drafter.config, block_size=4), drafter.embedding, drafter.lm_head)
    shorter.load_state_dict(drafter.state_dict())
    block = random_block(drafter.config, 12)
    long, short = (draft(each, block, DraftSampling.greedy(1)).probs[:, :3] for each in (drafter, shorter))
    assert torch.allclose(long, short, atol=1e-5) == is_same


@pytest.mark.parametrize("start", [3, 16, 29])
def test_a_draft_from_a_suffix_equals_one_whose_context_is_masked_to_it(start: int) -> None:
    drafter = random_dflash(layer_types=(SLIDING, "full_attention", SLIDING), sliding_window=8)
    whole = random_block(drafter.config, 29)
    suffix = draft(drafter, replace(whole, start=start), DraftSampling.greedy(1))
    anchors, positions = anchors_of([whole])
    masked = replace(paged_context(drafter, [whole]), starts=torch.tensor([start]))
    all_pages = drafter.draft(anchors, positions, masked, DraftSampling.greedy(1))
    assert torch.equal(suffix.tokens, all_pages.tokens)
    torch.testing.assert_close(suffix.probs, all_pages.probs, atol=1e-5, rtol=0)
