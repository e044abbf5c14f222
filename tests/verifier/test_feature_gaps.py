"""Passes leave features out while nothing is drafted; drafters get those behind the gap and no others."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from dspine_cluster.core.verify_length import (
    NO_LOAD,
    Blocks,
    FixedVerifyLength,
    Outcomes,
    PassLoad,
    VerifyLengthPolicy,
)
from dspine_cluster.engine.batch import PackedRows
from dspine_cluster.engine.feature_record import FeatureRecord
from dspine_cluster.models.config import TargetConfig
from dspine_cluster.transport.messages import Draft, FeatureBatch, Features, Message
from dspine_cluster.types import GenerateRequest
from dspine_cluster.verifier.attachments import Fallback
from tests.drafts import DraftItem, items_of
from tests.verifier.harness import (
    LoopHarness,
    ScriptedChannel,
    dense_config,
    hybrid_config,
    make_request,
    random_prompts,
    random_target,
)

NUM_DRAFTED, NUM_PLAIN, NUM_LEAD = 5, 9, 4
"""Passes of each phase, one after the other."""


class Phases(VerifyLengthPolicy):
    """Drafts for all, then decodes plainly without features, then with them."""

    def __init__(self, num_passes: int = 0) -> None:
        self.num_passes = num_passes

    @property
    def _phase(self) -> int:
        return self.num_passes % (NUM_DRAFTED + NUM_PLAIN + NUM_LEAD)

    @property
    def wants_drafts(self) -> bool:
        return True

    @property
    def wants_features(self) -> bool:
        return not NUM_DRAFTED <= self._phase < NUM_DRAFTED + NUM_PLAIN

    @property
    def drafts_newcomers(self) -> bool:
        return self.wants_features

    def choose(self, blocks: Blocks, load: PassLoad = NO_LOAD) -> list[int]:
        return FixedVerifyLength(15).choose(blocks, load)

    def choose_drafts(self, uids: Sequence[int]) -> Collection[int]:
        return uids if self._phase < NUM_DRAFTED else ()

    def note_pass(self, outcomes: Outcomes, load: PassLoad, taken_s: float) -> None:
        self.num_passes += 1


class Drafter(ScriptedChannel):
    """Proposes what is wrong in half of the cases, and refuses features that were not computed."""

    def __init__(self) -> None:
        super().__init__(lambda item: [item.position % 200] * 3)
        self.drafts: list[tuple[DraftItem, int]] = []
        """What was asked for, and how long the contiguous context before the anchor is."""

    def send(self, message: Message, *, bulk: bool = False) -> bool:
        if isinstance(message, Features | FeatureBatch):
            assert np.isfinite(message.rows.view(np.float32)).all(), "a feature that was left out"
        if isinstance(message, Features):
            assert self.positions[message.uid].isdisjoint(range(message.start, message.end)), "sent twice"
        if isinstance(message, Draft):
            for item in items_of(message):
                start = item.position
                while start - 1 in self.positions[item.uid]:
                    start -= 1
                self.drafts.append((item, item.position - start))
        return super().send(message, bulk=bulk)


def run(
    config: TargetConfig, policy: VerifyLengthPolicy, *batches: Sequence[GenerateRequest]
) -> tuple[list[list[int]], Drafter, LoopHarness]:
    """What came of some requests and then of others, with a pool in which features left out are not numbers."""
    drafter = Drafter()
    harness = LoopHarness(random_target(config, seed=5), channel=drafter, policy=policy)
    engine, forward = harness.engine, harness.engine.forward
    engine.feature_pool.rows.fill_(torch.nan)

    def spoiling(packed: PackedRows, *, with_features: bool) -> Tensor:
        hidden = forward(packed, with_features=with_features)
        if not with_features:
            _, slots = packed.places()
            engine.feature_pool.rows[slots] = torch.nan
        return hidden

    harness.engine.forward = spoiling  # type: ignore[method-assign,assignment]
    results = [result for batch in batches for result in harness.generate(batch)]
    return [result.token_ids for result in results], drafter, harness


@pytest.mark.parametrize("config", [hybrid_config(), dense_config()], ids=["hybrid", "dense"])
def test_texts_are_the_same_and_only_features_that_exist_are_sent(config: TargetConfig) -> None:
    requests = [make_request(prompt, max_tokens=50) for prompt in random_prompts(6, seed=4, max_length=90)]
    again = [make_request(request.prompt_ids[:80], max_tokens=30) for request in requests]
    expected, _, _ = run(config, Phases(NUM_DRAFTED), requests, again)
    texts, drafter, harness = run(config, Phases(), requests, again)
    assert texts == expected
    assert harness.loop.metrics.verified_tokens_total > 0
    lengths = {length for _, length in drafter.drafts}
    assert 0 not in lengths
    assert NUM_LEAD in lengths, "the context begins behind the gap"
    assert max(lengths) > 2 * NUM_LEAD


def test_a_context_behind_a_gap_grows_without_being_sent_twice() -> None:
    (prompt,) = random_prompts(1, seed=4, max_length=90)
    _, drafter, _ = run(dense_config(), Phases(), [make_request(prompt, max_tokens=60)])
    behind = [
        length for item, length in drafter.drafts if item.position >= len(prompt) + NUM_PLAIN + NUM_LEAD
    ]
    firsts = [length for length in behind if length == NUM_LEAD]
    assert firsts
    at = behind.index(NUM_LEAD)
    assert behind[at : at + NUM_DRAFTED] == sorted(behind[at : at + NUM_DRAFTED])


def test_a_cached_prefix_without_features_is_no_context() -> None:
    """Its pages are found, and what is computed behind them is all that a drafter can get."""
    prompt = random_prompts(1, seed=4, max_length=1)[0] * 64
    first, second = (make_request([*prompt, *tail], max_tokens=6) for tail in ([1, 2], [3, 4, 5, 6]))
    policy = Phases(NUM_DRAFTED)
    drafter = Drafter()
    harness = LoopHarness(random_target(dense_config(), seed=5), channel=drafter, policy=policy)
    harness.generate([first])
    assert policy.num_passes <= NUM_DRAFTED + NUM_PLAIN, "all of it without features"
    policy.num_passes = 0
    harness.generate([second])
    assert harness.loop.metrics.cached_prompt_tokens_total == 64
    assert drafter.drafts[0][1] == 4
    assert set(harness.loop.drafters.fallbacks) <= {Fallback.JOINING}


def test_nothing_is_asked_for_where_no_feature_precedes_the_anchor() -> None:
    class Hasty(Phases):
        """Asks for drafts without waiting for features."""

        def choose_drafts(self, uids: Sequence[int]) -> Collection[int]:
            return uids

    policy = Hasty(NUM_DRAFTED)
    _, drafter, harness = run(dense_config(), policy, [make_request([1, 2, 3], max_tokens=20)])
    assert min(length for _, length in drafter.drafts) == 1
    assert harness.loop.drafters.fallbacks[Fallback.JOINING] >= NUM_PLAIN - 2


def test_a_page_takes_the_place_of_another_only_with_all_features_that_one_had() -> None:
    """The same text once without features, and then with them: its pages become those that are cached."""

    class Later(Phases):
        @property
        def _phase(self) -> int:
            return NUM_DRAFTED if self.num_passes < 40 else 0

    request = make_request([1, 2, 3, 4, 5], max_tokens=40)
    (plain, drafted), drafter, _ = run(dense_config(), Later(), [request], [request])
    assert drafted == plain
    assert len(drafter.drafts) > 10
    assert all(length == item.position for item, length in drafter.drafts)


def test_what_exists_is_looked_up_once_behind_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not at every round, although the drafter has what lies before the gap, too."""
    looked_up: list[int] = []
    start_before = FeatureRecord.start_before

    def noting(record: FeatureRecord, pages: npt.NDArray[np.int32], end: int) -> int:
        looked_up.append(end)
        return start_before(record, pages, end)

    class Once(Phases):
        """Drafts on after one gap."""

        @property
        def _phase(self) -> int:
            return 0 if self.num_passes > NUM_DRAFTED + NUM_PLAIN + NUM_LEAD else self.num_passes

    monkeypatch.setattr(FeatureRecord, "start_before", noting)
    _, drafter, _ = run(dense_config(), Once(), [make_request([1, 2, 3], max_tokens=100)])
    positions = [item.position for item, _ in drafter.drafts]
    assert positions[0] < looked_up[-1], "there was a context before the gap"
    assert sum(position > looked_up[-1] for position in positions) > 10
