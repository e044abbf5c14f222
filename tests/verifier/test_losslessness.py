"""The output is plain decoding's, whatever a drafter says and however many of its proposals are checked."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from dspine_cluster.core.dynamic_verify_length import DynamicVerifyLength
from dspine_cluster.core.exploration import Exploration, ExplorationSettings
from dspine_cluster.core.verify_length import (
    NO_LOAD,
    Blocks,
    FixedVerifyLength,
    PassLoad,
    VerifyLengthPolicy,
)
from dspine_cluster.models.config import TargetConfig
from dspine_cluster.models.target import TargetModel
from dspine_cluster.types import FinishReason, GenerateRequest, SamplingParams
from tests.drafts import DraftItem
from tests.verifier.decisive import is_decisive
from tests.verifier.harness import (
    EOS,
    MASK,
    LoopHarness,
    Propose,
    Result,
    ScriptedChannel,
    dense_config,
    hybrid_config,
    make_request,
    random_prompts,
    random_target,
    time_passes,
)

NUM_PROMPTS = 200
GREEDY = SamplingParams(temperature=0.0)
SEEDED = SamplingParams(temperature=0.8, top_p=0.9, top_k=40, seed=7)
RULED = SamplingParams(
    temperature=0.0,
    repetition_penalty=1.3,
    frequency_penalty=0.4,
    presence_penalty=0.2,
    logit_bias=((17, 2.0),),
)


class RandomVerifyLength(VerifyLengthPolicy):
    """Changes at every round, zero included."""

    wants_drafts = True

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def choose(self, blocks: Blocks, load: PassLoad = NO_LOAD) -> list[int]:
        room, lengths = load.max_verified_tokens, []
        for num_proposals in blocks.num_proposals:
            lengths.append(min(room, self._random.randint(0, num_proposals)))
            room -= lengths[-1]
        return lengths


def dynamic(seed: int) -> DynamicVerifyLength:
    """Explores every fourth round, so that both decisions change often."""
    exploration = Exploration(ExplorationSettings(every_rounds=4, max_loss=1.0))
    return DynamicVerifyLength(random.Random(seed), exploration=exploration)


@dataclass
class Truth:
    """What plain decoding gives."""

    target: TargetModel
    requests: list[GenerateRequest]
    token_ids: list[list[int]]

    def continuation(self, uid: int, output_index: int) -> list[int]:
        rest = self.token_ids[uid][output_index : output_index + 15]
        return rest + [0] * (15 - len(rest))


def plain(target: TargetModel, requests: list[GenerateRequest]) -> list[Result]:
    return LoopHarness(target, policy=FixedVerifyLength(0)).generate(requests)


def make_truth(
    config: TargetConfig, sampling: SamplingParams, count: int = NUM_PROMPTS, max_tokens: int = 24
) -> Truth:
    target = random_target(config, seed=3)
    prompts = random_prompts(count + count // 4, seed=11)
    requests = [make_request(prompt, max_tokens=max_tokens, sampling=sampling) for prompt in prompts]
    outputs = [result.token_ids for result in plain(target, requests)]
    decisive = [
        (request, tokens)
        for request, tokens in zip(requests, outputs, strict=True)
        if is_decisive(target, request, tokens, MASK)
    ][:count]
    assert len(decisive) == count
    return Truth(target, [request for request, _ in decisive], [tokens for _, tokens in decisive])


@pytest.fixture(scope="module", params=["hybrid", "dense"])
def greedy_truth(request: pytest.FixtureRequest) -> Truth:
    return make_truth(hybrid_config() if request.param == "hybrid" else dense_config(), GREEDY)


@pytest.fixture(scope="module")
def seeded_truth() -> Truth:
    return make_truth(hybrid_config(), SEEDED)


@pytest.fixture(scope="module")
def ruled_truth() -> Truth:
    return make_truth(hybrid_config(), RULED, count=40)


def oracle(truth: Truth) -> Propose:
    return lambda item: truth.continuation(item.uid, item.output_index)


def adversarial(truth: Truth) -> Propose:
    """Right for a while, then wrong: mostly inside the block, sometimes at once, sometimes with ids nobody samples."""
    chance = random.Random(5)

    def propose(item: DraftItem) -> list[int]:
        tokens = truth.continuation(item.uid, item.output_index)
        wrong_from = chance.randint(0, 14)
        return tokens[:wrong_from] + [
            chance.choice([(t + 1) % 256, EOS, MASK, 0]) for t in tokens[wrong_from:]
        ]

    return propose


def sometimes_silent(truth: Truth) -> Propose:
    chance = random.Random(6)
    return lambda item: None if chance.random() < 0.3 else truth.continuation(item.uid, item.output_index)


def speculative(truth: Truth, propose: Propose, policy: VerifyLengthPolicy | None = None) -> LoopHarness:
    harness = LoopHarness(truth.target, channel=ScriptedChannel(propose), policy=policy)
    harness.generate(truth.requests)
    return harness


def outputs(harness: LoopHarness) -> list[list[int]]:
    return [result.token_ids for result in harness.results.values()]


DRAFTERS: dict[str, Callable[[Truth], Propose]] = {
    "oracle": oracle,
    "adversarial": adversarial,
    "sometimes silent": sometimes_silent,
}


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_output_is_that_of_plain_decoding(greedy_truth: Truth, drafter: str) -> None:
    assert outputs(speculative(greedy_truth, DRAFTERS[drafter](greedy_truth))) == greedy_truth.token_ids


@pytest.mark.parametrize("length", range(16))
def test_greedy_output_does_not_depend_on_the_verify_length(greedy_truth: Truth, length: int) -> None:
    harness = speculative(greedy_truth, adversarial(greedy_truth), FixedVerifyLength(length))
    assert outputs(harness) == greedy_truth.token_ids


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_output_survives_random_changes_of_the_verify_length(
    greedy_truth: Truth, drafter: str
) -> None:
    harness = speculative(greedy_truth, DRAFTERS[drafter](greedy_truth), RandomVerifyLength(1))
    assert outputs(harness) == greedy_truth.token_ids


TOKEN_S = (0.0, 0.02, 0.1, 1.0)
"""What a token more makes a pass of 0.1 s longer: from full blocks to plain decoding."""


def speculative_in_time(
    monkeypatch: pytest.MonkeyPatch, truth: Truth, drafter: str, token_s: float
) -> LoopHarness:
    """With the dynamic policy, by the virtual clock."""
    harness = LoopHarness(
        truth.target, channel=ScriptedChannel(DRAFTERS[drafter](truth)), policy=dynamic(seed=1)
    )
    time_passes(monkeypatch, harness, lambda num_tokens: 0.1 + token_s * num_tokens)
    harness.generate(truth.requests)
    return harness


@pytest.mark.parametrize("token_s", TOKEN_S)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_output_does_not_depend_on_dynamic_decisions(
    monkeypatch: pytest.MonkeyPatch, greedy_truth: Truth, drafter: str, token_s: float
) -> None:
    harness = speculative_in_time(monkeypatch, greedy_truth, drafter, token_s)
    assert outputs(harness) == greedy_truth.token_ids
    assert len(harness.loop.metrics.verify_length_total) >= 3


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_seeded_output_does_not_depend_on_dynamic_decisions(
    monkeypatch: pytest.MonkeyPatch, seeded_truth: Truth, drafter: str
) -> None:
    harness = speculative_in_time(monkeypatch, seeded_truth, drafter, 0.02)
    assert outputs(harness) == seeded_truth.token_ids


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_seeded_output_is_that_of_plain_decoding(seeded_truth: Truth, drafter: str) -> None:
    harness = speculative(seeded_truth, DRAFTERS[drafter](seeded_truth), RandomVerifyLength(2))
    assert outputs(harness) == seeded_truth.token_ids


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_penalties_and_bias_hold_at_every_position_of_a_block(ruled_truth: Truth, drafter: str) -> None:
    harness = speculative(ruled_truth, DRAFTERS[drafter](ruled_truth), RandomVerifyLength(3))
    assert outputs(harness) == ruled_truth.token_ids


def test_an_oracle_is_believed(greedy_truth: Truth) -> None:
    harness = speculative(greedy_truth, oracle(greedy_truth))
    metrics = harness.loop.metrics
    assert metrics.committed_tokens_total / metrics.rounds_total > 8


def test_the_acceptance_rate_never_exceeds_one(greedy_truth: Truth) -> None:
    metrics = speculative(greedy_truth, oracle(greedy_truth), RandomVerifyLength(4)).loop.metrics
    assert 0 < metrics.accepted_tokens_total <= metrics.verified_tokens_total <= metrics.proposed_tokens_total
    for position, accepted in metrics.accepted_tokens_per_position_total.items():
        assert accepted <= metrics.verified_tokens_per_position_total[position]


def test_output_does_not_depend_on_who_else_is_in_the_batch(greedy_truth: Truth) -> None:
    for uid in range(0, 40):
        (alone,) = plain(greedy_truth.target, [greedy_truth.requests[uid]])
        assert alone.token_ids == greedy_truth.token_ids[uid]


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED, RULED], ids=["greedy", "seeded", "ruled"])
def test_output_survives_preemption_under_memory_pressure(sampling: SamplingParams) -> None:
    """Eight requests grow to as many as 120 tokens in a pool of 272: somebody must give way."""
    truth = make_truth(hybrid_config(), sampling, count=24, max_tokens=80)
    harness = LoopHarness(
        truth.target,
        channel=ScriptedChannel(oracle(truth)),
        policy=RandomVerifyLength(5),
        pool_tokens=272,
    )
    harness.generate(truth.requests)
    assert harness.loop.metrics.preemptions_total > 0
    assert outputs(harness) == truth.token_ids


def test_forced_output_continues_as_if_never_interrupted(greedy_truth: Truth) -> None:
    resumed = [
        GenerateRequest(r.request_id, r.prompt_ids, r.sampling, r.stop, tuple(tokens[: len(tokens) // 2]))
        for r, tokens in zip(greedy_truth.requests[:40], greedy_truth.token_ids, strict=False)
    ]
    for result, tokens in zip(plain(greedy_truth.target, resumed), greedy_truth.token_ids, strict=False):
        assert result.token_ids == tokens[len(tokens) // 2 :]


def test_nothing_after_the_end_token_inside_a_block_is_emitted_or_counted() -> None:
    truth = make_truth(hybrid_config(), GREEDY, count=40)
    for uid, request in enumerate(truth.requests):
        tokens = truth.token_ids[uid]
        stop = tokens[len(tokens) // 2]
        stopped = make_request(request.prompt_ids, max_tokens=24, sampling=GREEDY, stop_token_ids=(stop,))
        harness = LoopHarness(truth.target)

        def propose(item: DraftItem, uid: int = uid) -> list[int]:
            return truth.continuation(uid, item.output_index)

        harness.loop.drafters.connect("scripted", ScriptedChannel(propose))
        (result,) = harness.generate([stopped])
        assert result.token_ids == tokens[: tokens.index(stop) + 1]
        assert result.finish_reason is FinishReason.STOP
        assert result.outputs[-1].usage.output_tokens == len(result.token_ids)
        assert harness.loop.metrics.committed_tokens_total == len(result.token_ids) - 1
