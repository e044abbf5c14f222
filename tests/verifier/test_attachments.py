from __future__ import annotations

import numpy as np
import pytest

from dspine_cluster.core.draft_pace import DraftPace
from dspine_cluster.core.session import Session
from dspine_cluster.core.survival import CONFIDENCE_EDGES, cells_of
from dspine_cluster.errors import ChannelError
from dspine_cluster.transport.messages import Draft, Features, Message, Proposals
from dspine_cluster.types import GenerateRequest, SamplingParams, StopConditions
from dspine_cluster.verifier.attachments import Attachment, Fallback, Link, read_blocks, read_cells
from tests.drafts import column
from tests.verifier.harness import (
    LoopHarness,
    ScriptedChannel,
    hybrid_config,
    make_request,
    random_prompts,
    random_target,
)

PROPOSED = 7


def proposals(candidates: list[int], probs: list[float]) -> Proposals:
    """Two proposals for one request, with the same candidates each."""
    shape = (1, 2, len(candidates))
    return Proposals(
        uids=column(1),
        rounds=column(1),
        tokens=np.full((1, 2), PROPOSED, np.int32),
        candidates=np.broadcast_to(np.asarray(candidates, np.int32), shape),
        probs=np.broadcast_to(np.asarray(probs, np.float32), shape),
        confidence=np.ones((1, 2), np.float32),
        draft_s=0.0,
    )


@pytest.mark.parametrize(
    ("candidates", "probs"),
    [
        ([PROPOSED, 8], [0.0, 1.0]),
        ([PROPOSED, 8], [0.5, 0.4]),
        ([PROPOSED, 8], [1.0, 1.0]),
        ([8, 9], [0.5, 0.5]),
        ([], []),
    ],
    ids=["no mass on the proposal", "too little mass", "too much mass", "another token", "nothing"],
)
def test_proposals_that_cannot_come_from_their_distribution_are_refused(
    candidates: list[int], probs: list[float]
) -> None:
    with pytest.raises(ChannelError, match="not drawn"):
        read_blocks(proposals(candidates, probs), [(0, True)], vocab_size=10)


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


def test_a_distribution_that_is_not_needed_is_not_looked_at() -> None:
    (block,) = read_blocks(proposals([8], [0.0]), [(0, False)], vocab_size=10)
    assert block.tokens == [PROPOSED, PROPOSED]
    assert block.probs is None


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


def test_cells_of_a_whole_answer_are_those_of_its_blocks() -> None:
    random = np.random.default_rng(0).random((50, 15), np.float32)
    edges = np.array([*CONFIDENCE_EDGES, 0.0, 1.0], np.float32)
    for confidences in (random, edges[None]):
        assert read_cells(confidences) == [cells_of(row) for row in confidences.tolist()]
