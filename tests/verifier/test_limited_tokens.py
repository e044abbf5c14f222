"""Requests that may not write everything: their output obeys, and is plain decoding's whatever is proposed."""

from __future__ import annotations

from itertools import pairwise

import pytest

from dspine_cluster.core.verify_length import FixedVerifyLength
from dspine_cluster.models.target import TargetModel
from dspine_cluster.types import SamplingParams
from tests.drafts import DraftItem
from tests.verifier.harness import (
    EOS,
    LoopHarness,
    ScriptedChannel,
    hybrid_config,
    make_request,
    random_prompts,
    random_target,
)

ALLOWED = tuple(range(40, 60))
PAIRS = {(a, b) for a in ALLOWED[:10] for b in ALLOWED[5:15]}
SAMPLINGS = {
    "greedy": SamplingParams(temperature=0.0, allowed_token_ids=(*ALLOWED, EOS)),
    "seeded": SamplingParams(seed=7, allowed_token_ids=ALLOWED),
    "seeded without words": SamplingParams(seed=7, allowed_token_ids=ALLOWED, bad_words=(*PAIRS, (59,))),
    "greedy without words": SamplingParams(
        temperature=0.0, frequency_penalty=0.5, bad_words=tuple((token,) for token in range(100, 256))
    ),
}


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return random_target(hybrid_config(), seed=3)


@pytest.mark.parametrize("name", SAMPLINGS)
def test_drafts_change_nothing_and_nothing_else_is_written(target: TargetModel, name: str) -> None:
    sampling = SAMPLINGS[name]
    requests = [
        make_request(prompt, sampling=sampling, min_tokens=3, max_tokens=30)
        for prompt in random_prompts(6, seed=5)
    ]
    plain = LoopHarness(target, policy=FixedVerifyLength(0)).generate(requests)

    def propose(item: DraftItem) -> list[int]:
        """What comes, and then what may not."""
        tokens = plain[item.uid].token_ids[item.output_index : item.output_index + 4]
        return [*tokens, 2, 59, 41, 50]

    drafted = LoopHarness(target, channel=ScriptedChannel(propose))
    results = drafted.generate(requests)
    assert [result.token_ids for result in results] == [result.token_ids for result in plain]
    assert drafted.loop.metrics.accepted_tokens_total > 0
    for result in results:
        if sampling.allowed_token_ids is not None:
            assert set(result.token_ids) <= set(sampling.allowed_token_ids)
        words = set(sampling.bad_words)
        assert words.isdisjoint((token,) for token in result.token_ids)
        assert words.isdisjoint(pairwise(result.token_ids))
