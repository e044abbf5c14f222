from dataclasses import replace

import pytest
import torch

from dspine_cluster.miniature.decoding import SamplingPlan, sample
from dspine_cluster.models.cache import SequenceCache
from dspine_cluster.models.target import TargetModel

PROMPTS = [[5, 9, 200], [7] * 11, [1, 2, 3, 4, 5, 6, 7], [42]]


def plan(temperature: float, seed: int = 0, max_new_tokens: int = 20) -> SamplingPlan:
    return SamplingPlan(
        max_new_tokens, torch.full((len(PROMPTS),), temperature), torch.Generator().manual_seed(seed)
    )


def argmax_continuation(model: TargetModel, prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        out = model(torch.tensor(tokens), torch.arange(len(tokens)), SequenceCache(1, len(tokens)))
        tokens.append(int(model.logits(out.hidden[-1:])[0, :-1].argmax()))
        if tokens[-1] in model.config.eos_token_ids:
            break
    return tokens[len(prompt) :]


@torch.inference_mode()
def test_greedy_rows_equal_one_by_one_decoding_without_a_cache(target: TargetModel) -> None:
    together = sample(target, PROMPTS, plan(0.0))
    assert together == [argmax_continuation(target, prompt, 20) for prompt in PROMPTS]


def test_a_seed_gives_the_same_text_and_another_gives_other_text(target: TargetModel) -> None:
    assert sample(target, PROMPTS, plan(1.0)) == sample(target, PROMPTS, plan(1.0))
    assert sample(target, PROMPTS, plan(1.0)) != sample(target, PROMPTS, plan(1.0, seed=1))


def test_rows_end_at_an_end_token_and_the_others_go_on(target: TargetModel) -> None:
    never, original = target.config.vocab_size - 1, target.config
    try:
        target.config = replace(original, eos_token_ids=(never,))
        free = sample(target, PROMPTS, plan(0.0, max_new_tokens=40))
        end = free[1][4]
        target.config = replace(original, eos_token_ids=(end,))
        stopped = sample(target, PROMPTS, plan(0.0, max_new_tokens=40))
    finally:
        target.config = original
    for row, whole in zip(stopped, free, strict=True):
        assert row == (whole[: whole.index(end) + 1] if end in whole else whole)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_mask_token_is_never_produced(target: TargetModel, temperature: float) -> None:
    mask = target.config.vocab_size - 1
    weight = target.lm_head_weight
    kept = weight[mask].clone()
    weight[mask] = 100 * weight.mean(0) + 50 * weight[0]
    try:
        assert all(mask not in row for row in sample(target, PROMPTS, plan(temperature)))
    finally:
        weight[mask] = kept
