"""Requests with a grammar: their output obeys it, and is plain decoding's whatever is proposed."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from dspine_cluster.core.verify_length import FixedVerifyLength
from dspine_cluster.models.target import TargetModel
from dspine_cluster.types import FinishReason, GenerateRequest, OutputGrammar, SamplingParams
from tests.drafts import DraftItem
from tests.engine.grammar_cases import Format, regex, structural_tag
from tests.verifier.decisive import is_decisive
from tests.verifier.harness import (
    EOS,
    MASK,
    LoopHarness,
    Propose,
    Result,
    ScriptedChannel,
    hybrid_config,
    make_request,
    random_prompts,
    random_target,
)

GREEDY = SamplingParams(temperature=0.0)
SEEDED = SamplingParams(temperature=0.9, top_p=0.95, seed=7)
RULED = SamplingParams(
    temperature=0.0, repetition_penalty=1.3, frequency_penalty=0.4, logit_bias=((ord("7"), 3.0), (EOS, 2.0))
)
SAMPLINGS = {"greedy": GREEDY, "seeded": SEEDED, "ruled": RULED}
LIST = regex(r'\[("[a-z]{6,16}"|[1-9][0-9]{5,8}|null)(, ("[a-z]{6,16}"|[1-9][0-9]{5,8}|null)){2,5}\]')
"""Bounded, and valid JSON."""


@dataclass
class Truth:
    """What plain decoding gives under a grammar."""

    target: TargetModel
    requests: list[GenerateRequest]
    results: list[Result]


def with_grammar(request: GenerateRequest, content: Format) -> GenerateRequest:
    return replace(request, grammar=OutputGrammar(structural_tag(content), "response_format"))


def plain(target: TargetModel, requests: Sequence[GenerateRequest]) -> list[Result]:
    return LoopHarness(target, policy=FixedVerifyLength(0)).generate(requests)


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return random_target(hybrid_config(), seed=3)


@pytest.fixture(scope="module", params=SAMPLINGS)
def truth(request: pytest.FixtureRequest, target: TargetModel) -> Truth:
    requests = [
        with_grammar(make_request(prompt, max_tokens=120, sampling=SAMPLINGS[request.param]), LIST)
        for prompt in random_prompts(30, seed=11)
    ]
    harness = LoopHarness(target, policy=FixedVerifyLength(0))
    results = harness.generate(requests)
    assert requests[0].grammar is not None
    grammar = asyncio.run(harness.grammars.compile(requests[0].grammar))
    pairs = [
        (request, result)
        for request, result in zip(requests, results, strict=True)
        if is_decisive(target, request, result.token_ids, MASK, grammar)
    ][:20]
    assert len(pairs) == 20
    return Truth(target, [request for request, _ in pairs], [result for _, result in pairs])


def adversarial(truth: Truth) -> Propose:
    """Right for a while, then wrong: often illegal at once, sometimes the end too early."""
    chance = random.Random(5)

    def propose(item: DraftItem) -> list[int]:
        tokens = truth.results[item.uid].token_ids[item.output_index :][:15]
        tokens += [chance.randrange(256)] * (15 - len(tokens))
        wrong_from = chance.randint(0, 14)
        wrong = [chance.choice([(t + 1) % 256, EOS, MASK, ord('"'), ord(",")]) for t in tokens[wrong_from:]]
        return tokens[:wrong_from] + wrong

    return propose


def run(truth: Truth, pool_tokens: int = 1024) -> LoopHarness:
    channel = ScriptedChannel(adversarial(truth))
    harness = LoopHarness(truth.target, channel=channel, pool_tokens=pool_tokens)
    harness.generate(truth.requests)
    return harness


def outputs(results: Sequence[Result]) -> list[tuple[list[int], str]]:
    return [(result.token_ids, result.text) for result in results]


def test_plain_output_obeys_the_grammar_and_ends_with_it(truth: Truth) -> None:
    for result in truth.results:
        assert isinstance(json.loads(result.text), list)
        assert result.token_ids[-1] == EOS
        assert result.finish_reason is FinishReason.STOP


def test_speculative_output_is_that_of_plain_decoding(truth: Truth) -> None:
    harness = run(truth)
    assert outputs(list(harness.results.values())) == outputs(truth.results)
    metrics = harness.loop.metrics
    assert metrics.committed_tokens_total / metrics.rounds_total > 2, "proposals that are legal are accepted"


def test_logprobs_are_those_of_plain_decoding_although_blocks_are_cut(truth: Truth) -> None:
    requests = [replace(request, num_top_logprobs=2) for request in truth.requests[:8]]
    harness = LoopHarness(truth.target, channel=ScriptedChannel(adversarial(truth)))
    pairs = zip(harness.generate(requests), plain(truth.target, requests), strict=True)
    for ours, theirs in pairs:
        logprobs, expected = (
            [value for output in result.outputs if output.logprobs for value in output.logprobs.chosen]
            for result in (ours, theirs)
        )
        assert len(logprobs) == len(ours.token_ids)
        assert logprobs == pytest.approx(expected, abs=1e-4)


def test_output_survives_preemption(truth: Truth) -> None:
    harness = run(truth, pool_tokens=272)
    assert harness.loop.metrics.preemptions_total > 0
    assert outputs(list(harness.results.values())) == outputs(truth.results)


def test_output_that_was_begun_elsewhere_goes_on_in_its_grammar(truth: Truth) -> None:
    halves = [result.token_ids[: len(result.token_ids) // 2] for result in truth.results]
    resumed = [
        replace(request, forced_output_ids=tuple(half))
        for request, half in zip(truth.requests, halves, strict=True)
    ]
    for half, rest, whole in zip(halves, plain(truth.target, resumed), truth.results, strict=True):
        assert half + rest.token_ids == whole.token_ids


def test_sampled_output_obeys_the_grammar(target: TargetModel) -> None:
    requests = [
        with_grammar(make_request(prompt, max_tokens=120, sampling=SamplingParams(temperature=1.5)), LIST)
        for prompt in random_prompts(24, seed=12)
    ]
    junk = random.Random(1)
    channel = ScriptedChannel(lambda item: [junk.choice(b'["a1, n]') for _ in range(15)])
    for result in LoopHarness(target, channel=channel).generate(requests):
        assert isinstance(json.loads(result.text), list)


def test_requests_without_a_grammar_are_what_they_are_alone(truth: Truth) -> None:
    free = [make_request(prompt, max_tokens=20) for prompt in random_prompts(6, seed=13)]
    alone = plain(truth.target, free)
    mixed = plain(
        truth.target, [request for pair in zip(free, truth.requests, strict=False) for request in pair]
    )
    assert outputs(mixed[::2]) == outputs(alone)
    assert outputs(mixed[1::2]) == outputs(truth.results[:6])


@pytest.mark.parametrize("min_tokens", [0, 40])
def test_a_request_ends_with_its_grammar_whatever_else_it_wants(target: TargetModel, min_tokens: int) -> None:
    request = make_request([1, 2], max_tokens=60, ignore_eos=True, min_tokens=min_tokens)
    channel = ScriptedChannel(lambda item: [98, 98, EOS] * 5)
    [result] = LoopHarness(target, channel=channel).generate([with_grammar(request, regex("ab{0,3}"))])
    if min_tokens:
        assert result.text == "abbb"
    assert result.finish_reason is FinishReason.STOP
    assert result.token_ids[-1] == EOS


def test_a_stop_string_cuts_inside_the_grammar(target: TargetModel) -> None:
    request = with_grammar(make_request([1, 2], max_tokens=60, stop_strings=("bc",)), regex("a{4}bcd"))
    [result] = plain(target, [request])
    assert (result.text, result.finish_reason) == ("aaaa", FinishReason.STOP)


def test_max_tokens_cuts_inside_the_grammar(target: TargetModel) -> None:
    request = with_grammar(make_request([1, 2], max_tokens=3), regex("a{9}"))
    [result] = plain(target, [request])
    assert (result.text, result.finish_reason) == ("aaa", FinishReason.LENGTH)
