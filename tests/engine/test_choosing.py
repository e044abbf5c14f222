from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.engine.blocks import Distributions
from dspine_cluster.engine.choosing import choose_greedy, choose_seeded, choose_unseeded, match
from dspine_cluster.engine.logit_rules import LogitRules
from dspine_cluster.models.noise import gumbel
from dspine_cluster.types import SamplingParams, StopConditions
from tests.engine.block_cases import Block, Verdict, batch_of, choose_each

VOCAB_SIZE = 5


def _rules(sampling: SamplingParams | None = None, num_prompt_tokens: int = 0) -> LogitRules:
    return LogitRules(
        sampling or SamplingParams(),
        StopConditions(max_tokens=9),
        num_prompt_tokens=num_prompt_tokens,
        eos_token_ids=[],
        mask_token_id=None,
        vocab_size=VOCAB_SIZE,
        device=torch.device("cpu"),
    )


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_greedy_commits_up_to_the_first_mismatch_and_its_correction() -> None:
    logits = torch.eye(VOCAB_SIZE)[[1, 2, 3, 4]]
    rules = _rules()
    assert choose_each(choose_greedy, logits, [Block(rules, [0], [1, 2, 3])]) == [Verdict((1, 2, 3, 4), 3)]
    assert choose_each(choose_greedy, logits, [Block(rules, [0], [1, 0, 3])]) == [Verdict((1, 2), 1)]
    assert choose_each(choose_greedy, logits[:1], [Block(rules, [0])]) == [Verdict((1,), 0)]


@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=8), max_size=4))
def test_of_each_block_the_longest_prefix_that_matches_is_accepted(
    pairs: list[list[tuple[int, int]]],
) -> None:
    rules = _rules()
    blocks = batch_of([Block(rules, [0], [proposal for proposal, _ in own]) for own in pairs])
    chosen = [[*(token for _, token in own), 9] for own in pairs]
    num_accepted = match(blocks, [token for own in chosen for token in own]).num_accepted
    for count, own in zip(num_accepted, pairs, strict=True):
        assert all(proposal == token for proposal, token in own[:count])
        assert count == len(own) or own[count][0] != own[count][1]


def test_greedy_takes_the_lowest_id_of_equals() -> None:
    assert choose_each(choose_greedy, torch.tensor([[0.0, 7.0, 7.0, 1.0, 7.0]]), [Block(_rules(), [0])]) == [
        Verdict((1,), 0)
    ]


@pytest.mark.parametrize("support", [[0, 1, 2, 3, 4], [3]])
def test_seeded_takes_the_argmax_with_the_noise_of_its_output_position(support: list[int]) -> None:
    probs = torch.zeros(40, VOCAB_SIZE)
    probs[:, support] = torch.rand(40, len(support), generator=_generator())
    rules = _rules(SamplingParams(seed=-17), num_prompt_tokens=2)
    blocks = [Block(rules, [0] * (2 + position)) for position in range(40)]
    for position, verdict in enumerate(choose_each(choose_seeded, probs, blocks)):
        noise = [
            gumbel(torch.tensor(-17), torch.tensor(position), torch.tensor(token)).item()
            for token in range(VOCAB_SIZE)
        ]
        scores = probs[position].double().log() + torch.tensor(noise, dtype=torch.float64)
        assert verdict.token_ids == (int(scores.argmax()),)


def test_a_target_equal_to_the_draft_accepts_everything() -> None:
    q = torch.rand(4, VOCAB_SIZE, generator=_generator()).softmax(-1)
    candidates = torch.arange(VOCAB_SIZE).expand(3, -1)
    blocks = [Block(_rules(), [0], [0, 3, 1], Distributions(candidates, q[:3]))] * 200
    for verdict in choose_each(choose_unseeded, q.repeat(200, 1), blocks, _generator()):
        assert verdict.num_accepted == 3
        assert verdict.token_ids[:3] == (0, 3, 1)


def test_after_a_rejection_only_tokens_with_p_above_q_are_sampled() -> None:
    target = torch.tensor([0.5, 0.3, 0.2, 0.0, 0.0])
    draft = torch.tensor([[0.0, 0.2, 0.1, 0.3, 0.4]])
    candidates = torch.arange(VOCAB_SIZE)[None]
    blocks = [Block(_rules(), [0], [3], Distributions(candidates, draft))] * 500
    verdicts = choose_each(choose_unseeded, target.repeat(1000, 1), blocks, _generator())
    assert all(verdict.num_accepted == 0 and len(verdict.token_ids) == 1 for verdict in verdicts)
    assert {verdict.token_ids[0] for verdict in verdicts} == {0, 1, 2}
    share = sum(verdict.token_ids == (0,) for verdict in verdicts) / 500
    assert share == pytest.approx(0.5 / 0.7, abs=0.06)


def test_a_residual_of_zero_samples_from_the_target() -> None:
    target = torch.tensor([[0.5, 0.5, 0.0, 0.0, 0.0]])
    draft = torch.tensor([[0.5, 0.5, 0.2]])
    block = Block(_rules(), [0], [2], Distributions(torch.tensor([[0, 1, 2]]), draft))
    verdicts = choose_each(choose_unseeded, target.repeat(200, 1), [block] * 100, _generator())
    assert {verdict.token_ids for verdict in verdicts} == {(0,), (1,)}


def test_tokens_without_probability_are_never_sampled() -> None:
    probs = torch.tensor([[0.0, 1e-30, 0.0, 1.0 - 1e-30, 0.0]])
    verdicts = choose_each(
        choose_unseeded, probs.repeat(2000, 1), [Block(_rules(), [0])] * 2000, _generator()
    )
    assert {verdict.token_ids[0] for verdict in verdicts} <= {1, 3}


def test_unseeded_verdicts_repeat_with_the_generator() -> None:
    probs = torch.rand(300, VOCAB_SIZE, generator=_generator()).softmax(-1)
    blocks = [Block(_rules(), [0], [1, 2])] * 100
    assert choose_each(choose_unseeded, probs, blocks, _generator()) == choose_each(
        choose_unseeded, probs, blocks, _generator()
    )
