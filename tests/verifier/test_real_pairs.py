"""Losslessness with real drafters: random ones, and those of the miniature."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from dspine_cluster import miniature
from dspine_cluster.config import (
    DrafterServiceConfig,
    DraftingConfig,
    EngineConfig,
    ModelSource,
    VerifierConfig,
)
from dspine_cluster.core.verify_length import FixedVerifyLength, VerifyLengthPolicy
from dspine_cluster.drafter.loading import load_drafter_replica
from dspine_cluster.drafter.loop import DrafterLoop
from dspine_cluster.drafter.runner import DraftRunner
from dspine_cluster.models.folder import load_tokenizer
from dspine_cluster.models.target import TargetModel
from dspine_cluster.transport.channel import Channel
from dspine_cluster.transport.messages import Draft, Features, Message
from dspine_cluster.types import GenerateRequest, SamplingParams
from dspine_cluster.verifier.attachments import Fallback
from dspine_cluster.verifier.loading import load_verifier
from tests.verifier.decisive import is_decisive
from tests.verifier.harness import (
    MASK,
    LoopHarness,
    Result,
    dense_config,
    hybrid_config,
    make_request,
    random_prompts,
    random_target,
    time_passes,
)
from tests.verifier.real_drafter import DrivenChannel, drive, random_pair
from tests.verifier.test_losslessness import GREEDY, SEEDED, RandomVerifyLength, dynamic

Kind = Literal["dspine", "dflash"]
KINDS: tuple[Kind, ...] = ("dspine", "dflash")


def token_ids(results: list[Result]) -> list[list[int]]:
    return [result.token_ids for result in results]


def decisive(
    target: TargetModel, requests: list[GenerateRequest], results: list[Result], mask_token_id: int
) -> tuple[list[GenerateRequest], list[list[int]]]:
    """The requests whose output does not hang by rounding, and that output."""
    kept = [
        (request, result.token_ids)
        for request, result in zip(requests, results, strict=True)
        if is_decisive(target, request, result.token_ids, mask_token_id)
    ]
    return [request for request, _ in kept], [tokens for _, tokens in kept]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("architecture", ["hybrid", "dense"])
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_random_pairs_give_plain_decoding_s_output(
    kind: Kind, architecture: str, sampling: SamplingParams
) -> None:
    target = random_target(hybrid_config() if architecture == "hybrid" else dense_config(), seed=8)
    requests = [make_request(p, max_tokens=20, sampling=sampling) for p in random_prompts(80, seed=9)]
    plain = LoopHarness(target, policy=FixedVerifyLength(0)).generate(requests)
    requests, expected = decisive(target, requests, plain, MASK)
    assert len(requests) >= 50
    engine, drafter = random_pair(target, kind, window=64)
    harness = LoopHarness(target, engine=engine, channel=drive(drafter), policy=RandomVerifyLength(1))
    assert token_ids(harness.generate(requests)) == expected
    assert harness.loop.metrics.verified_tokens_total > 0
    assert not harness.loop.drafters.fallbacks


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_eight_times_longer_than_the_window_works_and_stays_lossless(kind: Kind) -> None:
    target = random_target(hybrid_config(), seed=8)
    requests = [
        make_request(prompt * 8, max_tokens=40) for prompt in random_prompts(4, seed=3, max_length=16)
    ]
    requests.append(make_request(random_prompts(1, seed=4, max_length=1)[0] * 128, max_tokens=40))
    plain = LoopHarness(target, policy=FixedVerifyLength(0)).generate(requests)
    requests, expected = decisive(target, requests, plain, MASK)
    assert max(len(request.prompt_ids) for request in requests) >= 8 * 16
    engine, drafter = random_pair(target, kind, window=16)
    harness = LoopHarness(target, engine=engine, channel=drive(drafter))
    assert token_ids(harness.generate(requests)) == expected
    assert not harness.loop.drafters.fallbacks


class MiniaturePair:
    """The committed pair, with one of its drafters."""

    def __init__(self, kind: Kind, *, num_slots: int = 8, pool_tokens: int = 8192) -> None:
        source = ModelSource(f"miniature-{kind}")
        engine = EngineConfig(pool_tokens=pool_tokens, max_running_requests=num_slots)
        self.loaded = load_verifier(VerifierConfig(drafter=source, engine=engine))
        config = DrafterServiceConfig(drafter=source, endpoints=("unix:/unused",))
        self.drafter, _ = load_drafter_replica(config)

    @property
    def target(self) -> TargetModel:
        return self.loaded.engine.target

    @property
    def mask_token_id(self) -> int:
        assert self.loaded.drafter_config is not None
        return self.loaded.drafter_config.mask_token_id

    def run(
        self, requests: list[GenerateRequest], policy: VerifyLengthPolicy
    ) -> tuple[list[Result], LoopHarness]:
        harness = self.harness(drive(self.drafter) if policy.wants_drafts else None, policy)
        return harness.generate(requests), harness

    def harness(
        self, channel: Channel | None, policy: VerifyLengthPolicy, drafting: DraftingConfig | None = None
    ) -> LoopHarness:
        engine = self.loaded.engine
        return LoopHarness(
            self.target,
            engine=engine,
            tokenizer=load_tokenizer(miniature.folder("target")),
            mask_token_id=self.mask_token_id,
            channel=channel,
            policy=policy,
            drafting=drafting,
            max_model_len_tokens=4096,
            pool_tokens=16 * engine.num_pages,
            max_running_requests=engine.state_pool.num_slots,
            prefill_chunk_tokens=256,
            max_batch_tokens=1024,
        )

    def truth(self, requests: list[GenerateRequest]) -> tuple[list[GenerateRequest], list[list[int]]]:
        """The requests whose output does not hang by rounding, and what plain decoding makes of them."""
        plain, _ = self.run(requests, FixedVerifyLength(0))
        return decisive(self.target, requests, plain, self.mask_token_id)


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest) -> MiniaturePair:
    return MiniaturePair(request.param)


def miniature_requests(count: int, sampling: SamplingParams, max_tokens: int) -> list[GenerateRequest]:
    tokenizer = load_tokenizer(miniature.folder("target"))
    questions = [
        f"What is {a} plus {b}?" if a % 2 else f"Write a function that returns {a} times {b}."
        for a, b in torch.randint(1, 99, (count, 2), generator=torch.Generator().manual_seed(6)).tolist()
    ]
    prompts = [f"<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n" for q in questions]
    return [make_request(tokenizer.encode(p).ids, max_tokens=max_tokens, sampling=sampling) for p in prompts]


@pytest.fixture(scope="module")
def greedy_truth(pair: MiniaturePair) -> tuple[list[GenerateRequest], list[list[int]]]:
    requests, expected = pair.truth(miniature_requests(220, GREEDY, max_tokens=24))
    assert len(requests) >= 200
    return requests, expected


@pytest.mark.parametrize(
    "policy", [FixedVerifyLength(15), RandomVerifyLength(7)], ids=["full blocks", "random changes"]
)
def test_the_miniature_s_greedy_output_is_plain_decoding_s(
    pair: MiniaturePair,
    greedy_truth: tuple[list[GenerateRequest], list[list[int]]],
    policy: VerifyLengthPolicy,
) -> None:
    requests, expected = greedy_truth
    drafted, harness = pair.run(requests, policy)
    assert token_ids(drafted) == expected
    assert harness.loop.metrics.accepted_tokens_total > len(requests)
    assert not harness.loop.drafters.fallbacks


def test_dynamic_decisions_of_both_kinds_leave_the_miniature_s_greedy_output_alone(
    pair: MiniaturePair,
    greedy_truth: tuple[list[GenerateRequest], list[list[int]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests, expected = greedy_truth[0][:100], greedy_truth[1][:100]
    policy = dynamic(seed=4)
    harness = pair.harness(drive(pair.drafter), policy)
    time_passes(monkeypatch, harness, lambda num_tokens: 0.004 + 0.0002 * num_tokens)
    note_drafts = policy.note_drafts  # drafters go by their own clocks, and the machine may be slow
    monkeypatch.setattr(policy, "note_drafts", lambda num_blocks, taken_s: note_drafts(num_blocks, 0.002))
    assert token_ids(harness.generate(requests)) == expected
    figures = policy.figures()
    assert figures["draft_decisions_total{decision=draft}"] > len(requests)
    assert figures["verify_stops_total{reason=price}"] > 0, "some blocks were cut for what they would cost"
    verified, proposed = (
        harness.loop.metrics.verified_tokens_total,
        harness.loop.metrics.proposed_tokens_total,
    )
    assert 0 < verified < proposed


def test_the_miniature_s_greedy_output_does_not_depend_on_the_verify_length(
    pair: MiniaturePair, greedy_truth: tuple[list[GenerateRequest], list[list[int]]]
) -> None:
    requests, expected = greedy_truth
    for length in range(16):
        own = slice(length, None, 16)
        drafted, _ = pair.run(requests[own], FixedVerifyLength(length))
        assert token_ids(drafted) == expected[own]


def test_the_miniature_s_seeded_output_is_plain_decoding_s(pair: MiniaturePair) -> None:
    requests, expected = pair.truth(miniature_requests(40, SEEDED, max_tokens=24))
    assert len(requests) >= 30
    drafted, harness = pair.run(requests, RandomVerifyLength(8))
    assert token_ids(drafted) == expected
    assert harness.loop.metrics.accepted_tokens_total > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_warm_draft_context_gives_the_rounds_of_a_cold_one(kind: Kind) -> None:
    target = random_target(dense_config(), seed=8)
    request = make_request(random_prompts(1, seed=3, max_length=1)[0] * 90, max_tokens=60)
    engine, drafter = random_pair(target, kind, window=64)
    loop = DrafterLoop(DraftRunner(drafter, 256, random_seed=1), max_context_tokens=4000)
    results = []
    for _ in range(2):
        harness = LoopHarness(target, engine=engine, channel=DrivenChannel(loop))
        results += harness.generate([request])
    cold, warm = results
    whole_pages_in_window = 48  # of 90 tokens the window sees 26 to 89, and of these 32 to 79 are whole pages
    assert loop.counters.num_cached_tokens >= whole_pages_in_window
    assert warm.token_ids == cold.token_ids
    assert [o.accepted_tokens for o in warm.outputs] == [o.accepted_tokens for o in cold.outputs]
    loop.step()
    assert len(loop.contexts) == 0
    loop.contexts.check_integrity()


class CountingChannel(DrivenChannel):
    """Counts the bytes of features sent, and keeps who was drafted for."""

    def __init__(self, loop: DrafterLoop) -> None:
        super().__init__(loop)
        self.num_feature_bytes = 0
        self.drafted: set[int] = set()

    def send(self, message: Message, *, bulk: bool = False) -> bool:
        self.num_feature_bytes += message.num_bytes if isinstance(message, Features) else 0
        self.drafted |= set(message.uids.tolist()) if isinstance(message, Draft) else set()
        return super().send(message, bulk=bulk)


def test_sixty_four_requests_that_lose_their_drafter_move_at_a_pace_and_keep_their_text() -> None:
    pair = MiniaturePair("dspine", num_slots=64, pool_tokens=64 * 128)
    engine = pair.loaded.engine
    requests = miniature_requests(64, GREEDY, max_tokens=40)
    loops = [DrafterLoop(DraftRunner(pair.drafter, 512, random_seed=1), max_context_tokens=512) for _ in "12"]
    first, second = map(CountingChannel, loops)
    budget_bytes = 256 * engine.feature_row_bytes
    harness = pair.harness(
        first, FixedVerifyLength(3), DraftingConfig(attach_tokens=64, repair_bytes_per_step=budget_bytes)
    )
    for uid, request in enumerate(requests):
        harness.submit(uid, request)
    while len(first.drafted) < 64:
        assert harness.step()
    first.close()
    harness.loop.drafters.connect("second", second)
    num_steps = 0
    while running := {session.uid: session.num_output for session in harness.loop.streams.running}:
        num_old_bytes = second.num_feature_bytes
        harness.step()
        grown = {uid: len(harness.results[uid].token_ids) - before for uid, before in running.items()}
        assert min(grown.values()) >= 1, "every request decodes in every step"
        fresh_bytes = engine.feature_row_bytes * sum(grown.values())
        assert second.num_feature_bytes - num_old_bytes <= budget_bytes + fresh_bytes
        num_steps += len(second.drafted) < 64
    assert len(second.drafted) > 32
    assert num_steps >= 3
    assert harness.loop.drafters.fallbacks[Fallback.JOINING] > 0
    plain, _ = pair.run(requests, FixedVerifyLength(0))
    kept, expected = decisive(pair.target, requests, plain, pair.mask_token_id)
    results = {request.prompt_ids: harness.results[uid].token_ids for uid, request in enumerate(requests)}
    assert [results[request.prompt_ids] for request in kept] == expected
    assert len(kept) >= 50
    for loop in loops:
        loop.step()
        assert len(loop.contexts) == 0
        loop.contexts.check_integrity()
