from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from dspine_cluster.models.dflash import DFlash
from dspine_cluster.models.draft_sampling import DraftSampling
from dspine_cluster.models.drafter import Drafter, DraftOutput
from dspine_cluster.models.dspine import DSpine
from dspine_cluster.models.noise import gumbel
from tests.models.drafter_cases import (
    FULL,
    SLIDING,
    Block,
    anchors_of,
    dense_logits,
    dense_states,
    dense_write,
    paged_context,
    random_block,
    random_drafter,
    sampling_of,
    small_config,
)

LAYERS: dict[str, dict[str, Any]] = {
    "full": {},
    "one sliding layer": {"layer_types": (FULL, SLIDING, FULL), "sliding_window": 9},
    "all sliding": {"layer_types": (SLIDING,) * 3, "sliding_window": 4},
}


def draft(drafter: Drafter, blocks: list[Block], sampling: DraftSampling | None = None) -> DraftOutput:
    anchors, positions = anchors_of(blocks)
    context = paged_context(drafter, blocks)
    return drafter.draft(anchors, positions, context, sampling or DraftSampling.greedy(len(blocks)))


def random_dspine(**changes: Any) -> DSpine:
    drafter = random_drafter(small_config(**changes))
    assert isinstance(drafter, DSpine)
    return drafter


def refine_token_by_token(
    drafter: DSpine, block: Block, temperature: float, seed: int | None, index: int
) -> list[int]:
    """The definition: choose a token, refine the next state with its code, choose the next."""
    hidden, before = dense_states(drafter, block)
    candidates = dense_logits(drafter, hidden[1:]).topk(drafter.config.top_k).indices
    token, tokens = block.anchor, []
    for j in range(drafter.config.num_proposals):
        code = drafter.config.transfer_rank**0.5 * drafter.transfer_codes[token]
        refined = dense_write(drafter, drafter.config.num_layers - 1, before[j + 1], code)
        row = dense_logits(drafter, refined)[candidates[j]]
        if temperature > 0 and seed is not None:
            noise = gumbel(torch.tensor(seed), torch.tensor(index + j), candidates[j])
            row = (row / temperature).log_softmax(-1) + noise
        token = int(candidates[j][row.argmax()])
        tokens.append(token)
    return tokens


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize(("temperature", "seed"), [(0.0, None), (0.0, 3), (1.0, 3), (0.7, 123456789)])
def test_the_transition_cache_picks_what_sequential_refinement_picks(
    layers: str, temperature: float, seed: int | None
) -> None:
    drafter = random_dspine(**LAYERS[layers])
    blocks = [random_block(drafter.config, position, seed=position) for position in (0, 3, 18, 40)]
    sampling = sampling_of([temperature] * 4, [seed] * 4, [0, 7, 100, 31])
    output = draft(drafter, blocks, sampling)
    for row, (block, index) in enumerate(zip(blocks, [0, 7, 100, 31], strict=True)):
        assert output.tokens[row].tolist() == refine_token_by_token(drafter, block, temperature, seed, index)


def test_predecessors_matter_to_the_choice() -> None:
    drafter = random_dspine()
    tokens = set()
    for anchor in range(20):
        block = replace(random_block(drafter.config, 18), anchor=0)
        anchors, positions = anchors_of([block])
        hidden, before = drafter.run_layers(anchors, positions, paged_context(drafter, [block]))
        candidates = torch.arange(drafter.config.top_k).expand(1, drafter.config.num_proposals, -1)
        rows = drafter.rows(before[:, 1:], torch.tensor([anchor]), candidates, hidden)
        tokens.add(int(rows[0, 0, 0].argmax()))
    assert len(tokens) > 1


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_later_positions_never_change_earlier_ones(layers: str, temperature: float) -> None:
    drafter = random_dspine(block_size=9, **LAYERS[layers])
    shorter = DSpine(replace(drafter.config, block_size=4), drafter.embedding, drafter.lm_head)
    shorter.load_state_dict(drafter.state_dict())
    block = random_block(drafter.config, 21)
    sampling = sampling_of([temperature], [11], [5])
    long, short = draft(drafter, [block], sampling), draft(shorter, [block], sampling)
    assert torch.equal(short.tokens, long.tokens[:, :3])
    assert torch.equal(short.candidates, long.candidates[:, :3])
    torch.testing.assert_close(short.probs, long.probs[:, :3], atol=1e-5, rtol=0)


@pytest.mark.parametrize("layers", LAYERS)
def test_zero_writes_leave_the_causal_backbone(layers: str) -> None:
    drafter = random_dspine(top_k=16, **LAYERS[layers])
    for layer in range(drafter.config.num_layers):
        drafter.injection.weights(layer).write.zero_()
    backbone = DFlash(
        small_config("dflash", is_causal=(True,) * 3, **LAYERS[layers]), drafter.embedding, drafter.lm_head
    )
    state = drafter.state_dict()
    backbone.load_state_dict({name: state[name] for name in backbone.state_dict()})
    blocks = [random_block(drafter.config, position) for position in (2, 33)]
    actual, expected = draft(drafter, blocks), draft(backbone, blocks)
    assert torch.equal(actual.tokens, expected.tokens)
    assert torch.equal(actual.candidates, expected.candidates)
    torch.testing.assert_close(actual.probs, expected.probs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("start", [1, 15, 16, 30, 40])
def test_a_draft_from_a_suffix_equals_one_whose_context_is_masked_to_it(layers: str, start: int) -> None:
    drafter = random_dspine(**LAYERS[layers])
    whole = random_block(drafter.config, 40)
    pages_of_suffix_alone = draft(drafter, [replace(whole, start=start)])
    anchors, positions = anchors_of([whole])
    masked = replace(paged_context(drafter, [whole]), starts=torch.tensor([start]))
    all_pages = drafter.draft(anchors, positions, masked, DraftSampling.greedy(1))
    assert torch.equal(pages_of_suffix_alone.tokens, all_pages.tokens)
    torch.testing.assert_close(pages_of_suffix_alone.probs, all_pages.probs, atol=1e-5, rtol=0)


def chosen_pairs(output: DraftOutput) -> Tensor:
    return (output.candidates == output.tokens.unsqueeze(-1)).int().argmax(-1)


def test_unseeded_tokens_follow_the_distribution_that_goes_with_them() -> None:
    """Pearson's chi-square of the first proposal, and of the second given the first, over 4,000 draws."""
    drafter = random_dspine(block_size=3, top_k=4)
    block = random_block(drafter.config, 10)
    once = paged_context(drafter, [block])
    repeated = replace(
        once,
        page_table=once.page_table.expand(4000, -1),
        first_pages=once.first_pages.expand(4000),
        starts=once.starts.expand(4000),
    )
    anchors, positions = anchors_of([block])
    sampling = sampling_of([1.5] * 4000, generator=torch.Generator().manual_seed(5))
    output = drafter.draft(anchors.expand(4000), positions.expand(4000), repeated, sampling)
    index = chosen_pairs(output)
    groups = [index[:, 0], *(index[index[:, 0] == first, 1] for first in range(4))]
    probs = [output.probs[0, 0], *(output.probs[index[:, 0] == first][0, 1] for first in range(4))]
    for group, q in zip(groups, probs, strict=True):
        expected = q * len(group)
        statistic = ((torch.bincount(group, minlength=4) - expected) ** 2 / expected).sum()
        assert statistic < 16.3  # the 0.999 quantile with 3 degrees of freedom
    assert not torch.allclose(probs[1], probs[2], atol=0.02)


def test_a_seeded_draft_ignores_the_generator_and_an_unseeded_one_follows_it() -> None:
    drafter = random_dspine()
    block = random_block(drafter.config, 10)

    def tokens(seed: int | None, generator_seed: int) -> list[int]:
        generator = torch.Generator().manual_seed(generator_seed)
        sampling = sampling_of([2.0], [seed], generator=generator)
        tokens: list[int] = draft(drafter, [block], sampling).tokens[0].tolist()
        return tokens

    assert tokens(9, 0) == tokens(9, 1)
    assert tokens(9, 0) != tokens(10, 0)
    assert tokens(None, 0) == tokens(None, 0)
    assert tokens(None, 0) != tokens(None, 1)


def test_refine_is_the_state_behind_a_row_of_the_transition_cache() -> None:
    drafter = random_dspine()
    states = torch.randn(2, 5, drafter.config.hidden_size)
    candidates = torch.stack([torch.randperm(80)[:7] for _ in range(10)]).view(2, 5, 7)
    rows = drafter.rows(states, torch.tensor([1, 2]), candidates, torch.zeros(0))
    predecessors = torch.cat((torch.tensor([[1], [2]]), candidates[:, :-1, 3]), 1)
    refined = drafter.refine(states, predecessors)
    scores = torch.einsum("bph,bpkh->bpk", refined, drafter.lm_head[candidates])
    torch.testing.assert_close(rows[:, :, 3], scores, atol=1e-4, rtol=1e-4)
