from __future__ import annotations

import pytest

from dspine_cluster.core.draft_pace import DraftPace
from dspine_cluster.core.session import Session
from dspine_cluster.transport.messages import Draft, Features, Message
from dspine_cluster.types import GenerateRequest, SamplingParams, StopConditions
from dspine_cluster.verifier.attachments import Attachment, Fallback, Link
from tests.verifier.harness import (
    LoopHarness,
    ScriptedChannel,
    hybrid_config,
    make_request,
    random_prompts,
    random_target,
)


@pytest.mark.parametrize(
    ("sampling", "needs_distributions"),
    [
        (SamplingParams(temperature=0.0), False),
        (SamplingParams(temperature=1.0, seed=1), False),
        (SamplingParams(temperature=1.0), True),
    ],
)
def test_only_requests_that_sample_without_a_seed_need_distributions(
    sampling: SamplingParams, needs_distributions: bool
) -> None:
    session = Session(1, GenerateRequest("request", (1, 2), sampling, StopConditions(max_tokens=4)), 0)
    link = Link("unix:/drafter", ScriptedChannel(lambda item: None), DraftPace(2.0, 1.0, 3, 1.0), 0)
    assert Attachment(session, link, 0, 0.0, 0, 0).needs_distributions == needs_distributions


def test_a_drafter_that_takes_no_features_is_not_asked_for_drafts() -> None:
    class Full(ScriptedChannel):
        def send(self, message: Message, *, bulk: bool = False) -> bool:
            assert not isinstance(message, Draft)
            return not isinstance(message, Features) and super().send(message)

    target = random_target(hybrid_config(), seed=1)
    requests = [make_request(prompt) for prompt in random_prompts(4, seed=2)]
    plain = LoopHarness(target).generate(requests)
    harness = LoopHarness(target, channel=Full(lambda item: None))
    assert [r.token_ids for r in harness.generate(requests)] == [r.token_ids for r in plain]
    assert set(harness.loop.drafters.fallbacks) == {Fallback.CREDITS}


def test_asks_tell_what_is_fixed_of_each_request_while_others_come_and_go() -> None:
    asked: list[Draft] = []

    class Listening(ScriptedChannel):
        def send(self, message: Message, *, bulk: bool = False) -> bool:
            if isinstance(message, Draft):
                asked.append(message)
            return super().send(message, bulk=bulk)

    requests = [
        make_request([1] * 20, max_tokens=4, ignore_eos=True),
        make_request([1] * 30, max_tokens=12, sampling=SamplingParams(temperature=0.5), ignore_eos=True),
        make_request(
            [1] * 9, max_tokens=8, sampling=SamplingParams(temperature=1.0, seed=7), ignore_eos=True
        ),
    ]
    harness = LoopHarness(random_target(hybrid_config(), seed=1), channel=Listening(lambda item: None))
    harness.generate(requests)
    asked_together = {tuple(draft.uids.tolist()) for draft in asked}
    assert {(0, 1, 2), (1, 2), (1,)} <= asked_together
    for draft in asked:
        own = [requests[uid] for uid in draft.uids.tolist()]
        assert draft.temperatures.tolist() == [request.sampling.temperature for request in own]
        assert draft.has_seed.tolist() == [request.sampling.seed is not None for request in own]
        assert draft.seeds.tolist() == [request.sampling.seed or 0 for request in own]
        num_prompt = [len(request.prompt_ids) for request in own]
        assert (draft.positions + 1 - draft.output_indices).tolist() == num_prompt
