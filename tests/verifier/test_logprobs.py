"""Log-probabilities of output and prompt beside those of one pass over the whole sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dspine_cluster.core.verify_length import FixedVerifyLength
from dspine_cluster.models.cache import SequenceCache
from dspine_cluster.models.target import TargetModel
from dspine_cluster.types import GenerateRequest, Logprobs, SamplingParams
from tests.verifier.harness import (
    LoopHarness,
    Result,
    dense_config,
    hybrid_config,
    make_request,
    random_prompts,
    random_target,
)
from tests.verifier.real_drafter import drive, random_pair
from tests.verifier.test_losslessness import GREEDY, SEEDED, RandomVerifyLength
from tests.verifier.test_real_pairs import MiniaturePair, miniature_requests

TOLERANCE = 1e-4
NUM_TOP = 3


def asking(requests: Sequence[GenerateRequest], *, prompt: bool = False) -> list[GenerateRequest]:
    return [replace(request, num_top_logprobs=NUM_TOP, prompt_logprobs=prompt) for request in requests]


def true_logprobs(target: TargetModel, tokens: Sequence[int]) -> Tensor:
    """Row i predicts token i + 1: [len(tokens) - 1, vocab_size]."""
    ids = torch.tensor(tokens[:-1])
    with torch.no_grad():
        hidden = target(ids, torch.arange(len(ids)), SequenceCache(1, len(ids))).hidden
        return target.logits(hidden).log_softmax(-1)


def joined(result: Result) -> Logprobs:
    total = Logprobs()
    for output in result.outputs:
        assert output.logprobs is not None
        assert len(output.logprobs) == len(output.token_ids)
        total += output.logprobs
    return total


def assert_same(logprobs: Logprobs, token_ids: Sequence[int], expected: Tensor) -> None:
    chosen = expected.gather(1, torch.tensor(token_ids)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(logprobs.chosen), chosen, atol=TOLERANCE, rtol=0)
    best = expected.topk(NUM_TOP).values
    torch.testing.assert_close(torch.tensor(logprobs.top), best, atol=TOLERANCE, rtol=0)
    # Which tokens they are may hang by rounding; their log-probabilities do not.
    at_ids = expected.gather(1, torch.tensor(logprobs.top_ids))
    torch.testing.assert_close(at_ids, best, atol=TOLERANCE, rtol=0)


def assert_true(target: TargetModel, request: GenerateRequest, result: Result) -> None:
    expected = true_logprobs(target, [*request.prompt_ids, *result.token_ids])
    num_prompt = len(request.prompt_ids)
    assert_same(joined(result), result.token_ids, expected[num_prompt - 1 :])
    prompts = [output.prompt_logprobs for output in result.outputs]
    assert prompts[1:] == [None] * (len(prompts) - 1)
    assert (prompts[0] is not None) == request.prompt_logprobs
    if prompts[0] is not None and num_prompt > 1:
        assert_same(prompts[0], request.prompt_ids[1:], expected[: num_prompt - 1])


@pytest.mark.parametrize("architecture", ["hybrid", "dense"])
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED, SamplingParams()], ids=["greedy", "seeded", "unseeded"])
def test_output_and_prompt_have_the_target_s_own_whatever_is_drafted(
    architecture: str, sampling: SamplingParams
) -> None:
    target = random_target(hybrid_config() if architecture == "hybrid" else dense_config(), seed=8)
    prompts = [*random_prompts(6, seed=9), *(3 * p for p in random_prompts(4, seed=4, max_length=60))]
    requests = asking([make_request(p, max_tokens=20, sampling=sampling) for p in prompts], prompt=True)
    engine, drafter = random_pair(target, "dspine", window=64)
    harness = LoopHarness(target, engine=engine, channel=drive(drafter), policy=RandomVerifyLength(1))
    for request, result in zip(requests, harness.generate(requests), strict=True):
        assert_true(target, request, result)
    assert harness.loop.metrics.verified_tokens_total > 0


@pytest.fixture(scope="module")
def miniature_pair() -> MiniaturePair:
    return MiniaturePair("dspine")


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_the_miniature_gives_with_speculation_those_that_it_gives_without(
    miniature_pair: MiniaturePair, sampling: SamplingParams
) -> None:
    requests, expected = miniature_pair.truth(miniature_requests(8, sampling, max_tokens=24))
    requests = asking(requests)
    plain, _ = miniature_pair.run(requests, FixedVerifyLength(0))
    drafted, harness = miniature_pair.run(requests, RandomVerifyLength(7))
    assert [result.token_ids for result in drafted] == [result.token_ids for result in plain] == expected
    assert harness.loop.metrics.accepted_tokens_total > len(requests)
    for one, other in zip(drafted, plain, strict=True):
        with_drafts, without = joined(one), joined(other)
        torch.testing.assert_close(
            torch.tensor(with_drafts.chosen), torch.tensor(without.chosen), atol=TOLERANCE, rtol=0
        )
        torch.testing.assert_close(
            torch.tensor(with_drafts.top), torch.tensor(without.top), atol=TOLERANCE, rtol=0
        )


def test_masks_bias_and_temperature_do_not_change_them() -> None:
    target = random_target(dense_config(), seed=8)
    sampling = SamplingParams(
        temperature=0.3, seed=1, top_k=2, presence_penalty=1.5, logit_bias=((65, 50.0),)
    )
    [request] = asking([make_request(random_prompts(1, seed=2)[0], max_tokens=12, sampling=sampling)])
    [result] = LoopHarness(target, policy=FixedVerifyLength(0)).generate([request])
    assert 65 in result.token_ids
    assert_true(target, request, result)


def test_those_of_a_cached_prompt_are_computed_again() -> None:
    target = random_target(hybrid_config(), seed=8)
    prompt = random_prompts(1, seed=2, max_length=1)[0] * 150
    harness = LoopHarness(target, policy=FixedVerifyLength(0))
    requests = [
        make_request(prompt, max_tokens=4),
        *asking([make_request(prompt, max_tokens=4)], prompt=True),
        make_request(prompt, max_tokens=4),
    ]
    cached = []
    for request in requests:
        [result] = harness.generate([request])
        cached.append(result.outputs[-1].usage.cached_prompt_tokens)
        if request.prompt_logprobs:
            assert_true(target, request, result)
    assert cached[1] == 0
    assert cached[2] > 0


def test_preempted_requests_give_them_once() -> None:
    target = random_target(dense_config(), seed=8)
    prompts = random_prompts(6, seed=5, max_length=90)
    requests = asking([make_request(p, max_tokens=80) for p in prompts], prompt=True)
    harness = LoopHarness(target, policy=FixedVerifyLength(0), pool_tokens=288)
    for request, result in zip(requests, harness.generate(requests), strict=True):
        assert_true(target, request, result)
    assert harness.loop.metrics.preemptions_total > 0


def test_forced_output_was_told_of_before() -> None:
    target = random_target(dense_config(), seed=8)
    [request] = asking([make_request(random_prompts(1, seed=2)[0], max_tokens=20)], prompt=True)
    [whole] = LoopHarness(target, policy=FixedVerifyLength(0)).generate([request])
    resumed = replace(request, forced_output_ids=tuple(whole.token_ids[:7]))
    [rest] = LoopHarness(target, policy=FixedVerifyLength(0)).generate([resumed])
    assert rest.token_ids == whole.token_ids[7:]
    assert rest.outputs[0].prompt_logprobs is None
    expected = true_logprobs(target, [*request.prompt_ids, *whole.token_ids])
    assert_same(joined(rest), rest.token_ids, expected[len(request.prompt_ids) + 6 :])


def test_tokens_cut_off_by_a_stop_string_have_none() -> None:
    target = random_target(dense_config(), seed=8)
    prompts = random_prompts(12, seed=9)
    plain = LoopHarness(target, policy=FixedVerifyLength(0)).generate(
        [make_request(p, max_tokens=20) for p in prompts]
    )
    cases = [(p, r) for p, r in zip(prompts, plain, strict=True) if r.text[3:4].isprintable() and r.text[3:4]]
    requests = asking([make_request(p, max_tokens=20, stop_strings=(result.text[3],)) for p, result in cases])
    engine, drafter = random_pair(target, "dspine", window=64)
    stopped = LoopHarness(target, engine=engine, channel=drive(drafter)).generate(requests)
    assert cases
    for request, result in zip(requests, stopped, strict=True):
        assert len(joined(result)) == len(result.token_ids) == result.outputs[-1].usage.output_tokens
        assert_true(target, request, result)


def test_a_prompt_that_is_computed_in_parts_and_not_asked_about_leaves_those_of_the_output() -> None:
    target = random_target(hybrid_config(), seed=8)
    prompt = random_prompts(1, seed=2, max_length=1)[0] * 150
    [request] = asking([make_request(prompt, max_tokens=4)])
    harness = LoopHarness(target, policy=FixedVerifyLength(0), max_running_requests=4, max_batch_tokens=68)
    [result] = harness.generate([request])
    assert_true(target, request, result)


def test_requests_that_do_not_ask_get_none() -> None:
    target = random_target(dense_config(), seed=8)
    plain, asks = [make_request(p, max_tokens=5) for p in random_prompts(2, seed=9)]
    [asks] = asking([asks])
    silent, told = LoopHarness(target, policy=FixedVerifyLength(0)).generate([plain, asks])
    assert all(output.logprobs is None for output in silent.outputs)
    assert len(joined(told)) == 5
