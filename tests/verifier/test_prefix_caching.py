"""A warm request gives what a cold one gives, from as few tokens as its cached prefix leaves."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from dspine_cluster.core.verify_length import FixedVerifyLength
from dspine_cluster.models.target import TargetModel
from dspine_cluster.types import GenerateRequest, SamplingParams
from tests.drafts import DraftItem
from tests.verifier.conversations import Conversation, random_message
from tests.verifier.decisive import is_decisive
from tests.verifier.harness import (
    EOS,
    MASK,
    LoopHarness,
    Result,
    ScriptedChannel,
    dense_config,
    hybrid_config,
    make_request,
    random_target,
)

SEEDED = SamplingParams(temperature=0.8, top_p=0.9, seed=5)


@pytest.fixture(scope="module", params=["hybrid", "dense"])
def target(request: pytest.FixtureRequest) -> TargetModel:
    return random_target(hybrid_config() if request.param == "hybrid" else dense_config(), seed=3)


def plain(
    target: TargetModel,
    *,
    pool_tokens: int = 8192,
    max_model_len_tokens: int = 1024,
    prefix_cache: bool = True,
) -> LoopHarness:
    return LoopHarness(
        target,
        policy=FixedVerifyLength(0),
        pool_tokens=pool_tokens,
        max_model_len_tokens=max_model_len_tokens,
        prefix_cache=prefix_cache,
    )


def cold(target: TargetModel, request: GenerateRequest) -> list[int]:
    (result,) = plain(target, prefix_cache=False).generate([request])
    return result.token_ids


def cached_tokens(result: Result) -> int:
    return result.outputs[-1].usage.cached_prompt_tokens


@pytest.mark.parametrize("thinks", [True, False], ids=["thinking", "not thinking"])
@pytest.mark.parametrize("sampling", [None, SEEDED], ids=["greedy", "seeded"])
def test_later_turns_are_cached_and_give_the_text_of_a_cold_run(
    target: TargetModel, thinks: bool, sampling: SamplingParams | None
) -> None:
    """While speculation by a drafter that is often wrong goes on."""
    chance = random.Random(7)
    truth: dict[int, list[int]] = {}

    def propose(item: DraftItem) -> list[int]:
        tokens = (truth[item.uid][item.output_index :] + [0] * 15)[:15]
        wrong_from = chance.randint(0, 15)
        return tokens[:wrong_from] + [EOS] * (15 - wrong_from)

    warm = LoopHarness(target, channel=ScriptedChannel(propose), pool_tokens=8192, max_model_len_tokens=1024)
    num_compared = 0
    for _ in range(4):
        conversation = Conversation(random_message(chance, 10, 200), thinks)
        for turn in range(4):
            request = conversation.ask(random_message(chance, 5, 80), max_tokens=40, sampling=sampling)
            truth[len(warm.results)] = expected = cold(target, request)
            (result,) = warm.generate([request])
            if turn > 0:
                assert cached_tokens(result) >= 0.95 * conversation.num_common(request.prompt_ids) - 64
                assert cached_tokens(result) < len(request.prompt_ids)
            if is_decisive(target, request, expected, MASK):
                assert result.token_ids == expected
                num_compared += turn > 0
            conversation.answer(request, expected)
    assert num_compared >= 6
    assert warm.loop.metrics.cached_prompt_tokens_total > 1000


def test_a_continued_output_is_cached_up_to_its_last_block(target: TargetModel) -> None:
    harness = plain(target)
    prompt = random_message(random.Random(1), 150, 150)
    (first,) = harness.generate([make_request(prompt, max_tokens=60)])
    (second,) = harness.generate([make_request([*prompt, *first.token_ids, 7, 8], max_tokens=10)])
    assert cached_tokens(second) >= len(prompt) + 60 - 17


def test_branches_of_one_prefix_share_it_from_the_third_on() -> None:
    """The second request shows where the prompts part."""
    chance = random.Random(2)
    system = random_message(chance, 200, 200)
    harness = plain(random_target(hybrid_config(), seed=3))
    results = [
        harness.generate([make_request([*system, *random_message(chance, 100, 100)], max_tokens=2)])[0]
        for _ in range(3)
    ]
    assert [cached_tokens(result) for result in results] == [0, 0, 192]


def test_a_hit_leaves_a_token_to_compute(target: TargetModel) -> None:
    for length in (64, 65, 127, 128, 129, 192):
        harness = plain(target)
        request = make_request(random_message(random.Random(length), length, length), max_tokens=4)
        first, second = (harness.generate([request])[0] for _ in range(2))
        assert first.token_ids == second.token_ids
        assert cached_tokens(second) <= length - 1
        assert cached_tokens(second) >= (length - 1) // 64 * 64


def test_requests_of_different_salts_share_nothing(target: TargetModel) -> None:
    harness = plain(target)
    request = make_request(random_message(random.Random(3), 200, 200), max_tokens=4)
    tenants = [replace(request, cache_salt=salt) for salt in ("one", "two", "", "one")]
    results = [harness.generate([tenant])[0] for tenant in tenants]
    assert [cached_tokens(result) > 0 for result in results] == [False, False, False, True]


def test_a_cache_that_is_off_finds_and_keeps_nothing(target: TargetModel) -> None:
    harness = plain(target, prefix_cache=False)
    request = make_request(random_message(random.Random(3), 200, 200), max_tokens=4)
    results = [harness.generate([request])[0] for _ in range(2)]
    assert [cached_tokens(result) for result in results] == [0, 0]
    assert harness.loop.streams.prefix_cache.index.num_cached_pages == 0


def test_output_is_right_while_cached_prefixes_are_evicted_for_running_requests(target: TargetModel) -> None:
    chance = random.Random(4)
    documents = [random_message(chance, 100, 200) for _ in range(6)]
    requests = [
        make_request([*chance.choice(documents), *random_message(chance, 1, 40)], max_tokens=20)
        for _ in range(40)
    ]
    harness = plain(target, pool_tokens=640, max_model_len_tokens=512)
    results = harness.generate(requests)
    metrics = harness.loop.metrics
    assert metrics.evicted_pages_total > 0
    assert metrics.cached_prompt_tokens_total > 0
    num_compared = 0
    for request, result in zip(requests, results, strict=True):
        expected = cold(target, request)
        if is_decisive(target, request, expected, MASK):
            assert result.token_ids == expected
            num_compared += 1
    assert num_compared >= 20


def test_a_preempted_request_resumes_from_what_it_left(target: TargetModel) -> None:
    """The others take pages of it until one of them ends; the prompt's part lasts longest."""
    chance = random.Random(5)
    prompts = [random_message(chance, 150, 150) for _ in range(3)]
    requests = [make_request(p, max_tokens=n) for p, n in zip(prompts, (70, 120, 120), strict=True)]
    harness = plain(target, pool_tokens=640, max_model_len_tokens=512)
    for uid, request in enumerate(requests):
        harness.submit(uid, request)
    resumed: Counter[int] = Counter()
    while len(harness.loop.streams):
        assert harness.step()
        for session in harness.loop.streams.running:
            num_cached = session.resume.match.num_tokens  # 0 at first: the prompts share nothing
            resumed[session.uid] = max(resumed[session.uid], num_cached)
    assert harness.loop.metrics.preemptions_total > 0
    assert any(num_tokens >= 128 for num_tokens in resumed.values()), resumed
    for uid, request in enumerate(requests):
        expected = cold(target, request)
        if is_decisive(target, request, expected, MASK):
            assert harness.results[uid].token_ids == expected
        assert cached_tokens(harness.results[uid]) == 0  # as it was when first admitted
