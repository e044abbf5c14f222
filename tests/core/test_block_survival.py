from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest

from dspine_cluster.core.block_survival import BlockSurvival
from dspine_cluster.core.survival import cells_of
from dspine_cluster.core.verify_length import Blocks, Outcomes

DOUBTFUL = [0.75, 0.15, 0.55, 0.35]


def blocks_of(*confidences: Sequence[float], is_greedy: Sequence[bool] = (True, True, True)) -> Blocks:
    """Of the requests 10, 11, 12 .."""
    return Blocks(
        range(10, 10 + len(confidences)),
        [len(rows) for rows in confidences],
        [cells_of(rows) for rows in confidences],
        is_greedy[: len(confidences)],
    )


def play(survival: BlockSurvival, blocks: Blocks, outcomes: Outcomes) -> None:
    survival.begin(blocks)
    survival.acceptances(outcomes)
    survival.learn()


def curve(survival: BlockSurvival, confidences: Sequence[float], *, is_greedy: bool = True) -> list[float]:
    survival.begin(blocks_of(confidences, is_greedy=[is_greedy]))
    ((_, survivals),) = survival.curves(0, 1)
    return survivals


def test_nothing_is_learnt_of_what_was_not_verified_or_lies_behind_a_rejection() -> None:
    one, same, untouched = (BlockSurvival(15) for _ in range(3))
    for _ in range(100):
        play(one, blocks_of(DOUBTFUL), Outcomes([10], [3], [1]))
        play(same, blocks_of([0.75, 0.15, 0.95, 0.95]), Outcomes([10], [2], [1]))
        play(untouched, blocks_of(DOUBTFUL), Outcomes([10], [0], [0]))
    asked = [*DOUBTFUL, 0.95]
    assert curve(one, asked) == curve(same, asked) != curve(untouched, asked)
    assert curve(untouched, asked) == curve(BlockSurvival(15), asked)


def test_a_verified_block_without_a_rejection_shows_only_successes() -> None:
    survival = BlockSurvival(15)
    for _ in range(100):
        play(survival, blocks_of([0.55] * 4), Outcomes([10], [2], [2]))
    assert curve(survival, [0.55, 0.55])[1] > 0.9


def test_greedy_and_sampled_requests_are_learnt_apart_whatever_the_order_of_outcomes() -> None:
    survival = BlockSurvival(15)
    blocks = blocks_of([0.75] * 4, [0.75] * 4, [], is_greedy=[True, False, True])
    for _ in range(100):
        play(survival, blocks, Outcomes([12, 11, 10], [0, 4, 4], [0, 0, 4]))
    assert curve(survival, [0.75], is_greedy=True)[0] > 0.9
    assert curve(survival, [0.75], is_greedy=False)[0] < 0.1


def test_what_was_promised_is_told_with_what_was_accepted() -> None:
    survival = BlockSurvival(15)
    survival.begin(blocks_of([0.75, 0.15, 0.55], [], [0.75]))
    assert survival.num_drafted == 2
    (first, second) = survival.acceptances(Outcomes([10, 11, 12], [3, 0, 1], [1, 0, 1]))
    assert first[:3] == (10, 2, 1)
    assert second[:3] == (12, 1, 1)
    assert (first[3], second[3]) == pytest.approx((0.9, 0.75))


def test_each_block_with_proposals_has_its_turn_to_be_looked_at_as_a_whole() -> None:
    survival = BlockSurvival(15)
    survival.begin(blocks_of([0.75] * 3, [], [0.55, 0.75]))
    assert [uid for uid, _ in survival.curves(0, 1)] == [10]
    assert [uid for uid, _ in survival.curves(1, 4)] == [12, 10]
    assert [len(survivals) for _, survivals in survival.curves(4, 2)] == [3, 2]


def test_of_many_blocks_all_have_their_turn_to_be_learnt_from_whatever_became_of_them() -> None:
    survival, random = BlockSurvival(15), Random(0)
    uids = range(10, 50)
    blocks = Blocks(uids, [4] * 40, [cells_of(DOUBTFUL)] * 40, [True, False] * 20)
    counts = Counter[int]()
    for _ in range(40):
        survival.begin(blocks)
        outcomes = Outcomes(uids, [4] * 40, [random.choice((0, 4)) for _ in uids])
        counts.update(uid for uid, *_ in survival.acceptances(outcomes))
        survival.learn()
    assert counts == dict.fromkeys(uids, 16)


def test_of_many_blocks_the_one_on_trial_is_learnt_from() -> None:
    survival = BlockSurvival(15)
    uids = range(40)
    blocks = Blocks(uids, [4] * 40, [cells_of(DOUBTFUL)] * 40, [True] * 40)
    for trial in (39, 20, 0, 20):
        survival.begin(blocks)
        found = survival.acceptances(Outcomes(uids, [4] * 40, [2] * 40), trial)
        assert trial in [uid for uid, *_ in found]
        assert len({uid for uid, *_ in found}) == 16
        survival.learn()


def test_a_request_on_trial_whose_block_was_not_verified_is_no_reason_to_look_at_others() -> None:
    survival = BlockSurvival(15)
    uids = range(40)
    survival.begin(Blocks(uids, [4] * 39 + [0], [cells_of(DOUBTFUL)] * 40, [True] * 40))
    found = survival.acceptances(Outcomes(uids, [4] * 39 + [0], [2] * 39 + [0]), 39)
    assert [uid for uid, *_ in found] == list(range(16))
