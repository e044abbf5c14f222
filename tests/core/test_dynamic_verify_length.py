from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from random import Random

import pytest

from dspine_cluster.core.draft_cost import DraftCost
from dspine_cluster.core.dynamic_verify_length import DynamicVerifyLength
from dspine_cluster.core.exploration import Exploration, ExplorationSettings
from dspine_cluster.core.survival import cells_of
from dspine_cluster.core.verify_length import Blocks, Outcomes, PassLoad, VerifyLengthPolicy
from dspine_cluster.core.verify_walk import Stop


def seldom() -> Exploration:
    return Exploration(ExplorationSettings(every_rounds=10_000))


def blocks_of(*confidences: Sequence[float], is_greedy: Sequence[bool] | None = None) -> Blocks:
    """Of the requests 0, 1, 2 .."""
    return Blocks(
        range(len(confidences)),
        [len(rows) for rows in confidences],
        [cells_of(rows) for rows in confidences],
        is_greedy or [True] * len(confidences),
    )


def outcomes_of(num_verified: Sequence[int], num_accepted: Sequence[int] | None = None) -> Outcomes:
    """Of the requests 0, 1, 2 .., of which nothing is accepted unless it is said."""
    return Outcomes(range(len(num_verified)), num_verified, num_accepted or [0] * len(num_verified))


def teach(policy: VerifyLengthPolicy, token_s: float, *, num_requests: int = 2, num_passes: int = 60) -> None:
    """Passes of a constant second and `token_s` a token, with proposals that are accepted as promised: 3 of 4."""
    random = Random(0)
    for _ in range(num_passes):
        blocks = blocks_of(*([0.75] * random.randint(0, 4) for _ in range(num_requests)))
        policy.choose(blocks)
        accepted = [_accepted(random, count, 0.75) for count in blocks.num_proposals]
        num_tokens = num_requests + sum(blocks.num_proposals)
        policy.note_pass(outcomes_of(blocks.num_proposals, accepted), PassLoad(), 1.0 + token_s * num_tokens)
        policy.choose_drafts(range(num_requests))


def reject_all(policy: VerifyLengthPolicy, num_passes: int) -> list[int]:
    """Passes and drafts of a second for two requests, of whose proposals none is accepted; how many were drafted for
    next after each pass."""
    asked = []
    drafting: set[int] = {0, 1}
    for _ in range(num_passes):
        lengths = policy.choose(blocks_of(*([0.5] * 15 if uid in drafting else [] for uid in range(2))))
        policy.note_pass(outcomes_of(lengths), PassLoad(), 1.0)
        drafting = set(policy.choose_drafts([0, 1]))
        policy.note_drafts(max(1, len(drafting)), 1.0)
        asked.append(len(drafting))
    return asked


def _accepted(random: Random, num_verified: int, acceptance: float) -> int:
    return next((i for i in range(num_verified) if random.random() >= acceptance), num_verified)


def test_before_a_cost_is_known_all_that_fits_is_verified() -> None:
    policy = DynamicVerifyLength(Random(0))
    blocks = blocks_of([0.1] * 15, [], [0.1] * 15)
    assert policy.choose(blocks) == [15, 0, 15]
    assert policy.choose(blocks, PassLoad(max_verified_tokens=20)) == [15, 0, 5]


def test_more_is_verified_where_tokens_are_cheap() -> None:
    cheap, dear = (DynamicVerifyLength(Random(0), exploration=seldom()) for _ in range(2))
    teach(cheap, 0.001)
    teach(dear, 1.0)
    blocks = blocks_of([0.75] * 15, [0.75] * 15)
    assert sum(cheap.choose(blocks)) > 25
    assert sum(dear.choose(blocks)) < 6


def test_confidence_decides_between_requests() -> None:
    policy = DynamicVerifyLength(Random(0), exploration=seldom())
    teach(policy, 0.3)
    confident, doubtful = policy.choose(blocks_of([0.99] * 8, [0.1] * 8))
    assert confident > doubtful


def test_acceptance_of_greedy_and_of_sampled_requests_is_learnt_apart() -> None:
    policy = DynamicVerifyLength(Random(0), exploration=seldom())
    teach(policy, 0.2)
    blocks = blocks_of([0.75] * 4, [0.75] * 4, is_greedy=[True, False])
    for _ in range(300):
        policy.choose(blocks)
        policy.note_pass(outcomes_of([4, 4], [4, 0]), PassLoad(), 3.0)
    greedy, sampled = policy.choose(blocks)
    assert greedy == 4
    assert sampled == 0


def test_the_room_of_the_pass_is_kept() -> None:
    policy = DynamicVerifyLength(Random(0), exploration=seldom())
    teach(policy, 0.0001)
    blocks = blocks_of(*[[0.9] * 15] * 4)
    assert sum(policy.choose(blocks, PassLoad(max_verified_tokens=17))) == 17
    assert policy.figures()[f"verify_stops_total{{reason={Stop.ROOM}}}"] == 1


def test_one_request_of_one_round_in_64_is_verified_in_full() -> None:
    policy = DynamicVerifyLength(Random(0), exploration=Exploration(ExplorationSettings(max_loss=1.0)))
    teach(policy, 1.0, num_requests=4, num_passes=20)
    num_full = []
    for _ in range(256):
        lengths = policy.choose(blocks_of(*[[0.3] * 15] * 4))
        num_full.append(sum(length == 15 for length in lengths))
        policy.note_pass(outcomes_of(lengths), PassLoad(), 5.0 + sum(lengths))
        policy.choose_drafts(range(4))
    assert set(num_full) == {0, 1}
    assert 2 <= sum(num_full) <= 4


def test_when_all_decode_plainly_one_draft_in_64_rounds_is_asked_for() -> None:
    policy = DynamicVerifyLength(Random(0))
    asked = reject_all(policy, 400)
    assert set(asked[-200:]) == {0, 1}
    assert 1 <= sum(asked[-200:]) <= 4


@pytest.mark.parametrize(("num_missed", "num_full"), [(2, 1), (3, 0)])
def test_a_trial_waits_a_little_for_a_drafter_to_catch_up(num_missed: int, num_full: int) -> None:
    exploration = Exploration(ExplorationSettings(max_missed=3))
    policy = DynamicVerifyLength(Random(0), exploration=exploration)
    policy.note_pass(outcomes_of([0, 0]), PassLoad(), 3.0)
    exploration.begin(1)
    for _ in range(num_missed):
        policy.choose(blocks_of([], []))
    lengths = policy.choose(blocks_of([0.01] * 15, [0.01] * 15))
    assert lengths.count(15) == num_full


def test_requests_that_end_are_forgotten() -> None:
    policy = DynamicVerifyLength(Random(0), exploration=Exploration(ExplorationSettings(every_rounds=1)))
    teach(policy, 0.1, num_requests=3, num_passes=5)
    for uid in range(3):
        policy.forget(uid)
    assert policy.draft_or_plain.num_requests == 0
    assert not policy.choose_drafts([])
    assert set(policy.choose_drafts([7])) == {7}


def test_a_pass_without_blocks_teaches_its_cost() -> None:
    policy = DynamicVerifyLength(Random(0))
    policy.note_pass(outcomes_of([]), PassLoad(num_prefill_tokens=512), 0.1)
    assert policy.pass_cost.is_known


def test_a_gap_is_filled_with_the_prefill_that_the_draft_leaves_time_for() -> None:
    policy = DynamicVerifyLength(Random(0))
    assert policy.prefill_room(1024, 8, 0.0) == 1024, "nothing is known yet"
    for num_tokens in (64, 128, 256, 512) * 20:
        policy.note_pass(outcomes_of([]), PassLoad(num_prefill_tokens=num_tokens), 0.001 * num_tokens)
    for _ in range(20):
        policy.note_drafts(8, 0.3)
    assert policy.prefill_room(1024, 8, 0.0) in (256, 320)
    assert policy.prefill_room(1024, 8, 0.15) in (128, 192)
    assert policy.prefill_room(1024, 8, 0.25) == 64, "no longer than in the round"
    assert policy.prefill_room(1024, 8, 10.0) == 0, "overdue: they may come at once"
    assert policy.prefill_room(128, 8, 0.0) == 128


def test_a_gap_shorter_than_what_any_pass_takes_is_left_empty() -> None:
    policy = DynamicVerifyLength(Random(0))
    for num_tokens in (64, 128, 256, 512) * 20:
        policy.note_pass(outcomes_of([]), PassLoad(num_prefill_tokens=num_tokens), 0.2 + 0.0001 * num_tokens)
    for draft_s, room_tokens in ((0.02, 0), (0.203, 64)):
        policy.draft_cost = DraftCost()
        for _ in range(20):
            policy.note_drafts(8, draft_s)
        assert policy.prefill_room(1024, 8, 0.0) == room_tokens


def play(policy: DynamicVerifyLength, constant_s: float, token_s: float, draft_s: float) -> None:
    """Rounds of four requests, or of two of them, that accept all of eight proposals."""
    for number in range(60):
        lengths = policy.choose(blocks_of(*[[0.95] * 8] * (2 + 2 * (number % 2))))
        num_tokens = sum(1 + length for length in lengths)
        policy.note_pass(outcomes_of(lengths, lengths), PassLoad(), constant_s + token_s * num_tokens)
        policy.choose_drafts(range(4))
        policy.note_drafts(4, draft_s)
        policy.note_drafts(2, draft_s / 2)


@pytest.mark.parametrize(("constant_s", "token_s", "has_halves"), [(0.0, 0.01, True), (0.3, 0.0001, False)])
def test_halves_take_turns_where_costs_say_so(constant_s: float, token_s: float, has_halves: bool) -> None:
    policy = DynamicVerifyLength(Random(0), exploration=seldom())
    play(policy, constant_s, token_s, draft_s=0.3)
    assert policy.has_halves is has_halves


def decode_plainly(policy: DynamicVerifyLength, num_passes: int, *, num_prefill_tokens: int = 0) -> None:
    """Passes of two requests that take a second, in which nothing is drafted."""
    for _ in range(num_passes):
        assert policy.choose(blocks_of([], [])) == [0, 0]
        policy.note_pass(outcomes_of([0, 0]), PassLoad(num_prefill_tokens=num_prefill_tokens), 1.0)
        policy.note_joining(0)
        assert not policy.choose_drafts([0, 1])


def settled_on_plain() -> DynamicVerifyLength:
    """Nothing that was drafted was accepted, and no trial is made."""
    never = ExplorationSettings(first_rounds=10_000, every_rounds=10_000)
    policy = DynamicVerifyLength(Random(0), exploration=Exploration(never))
    reject_all(policy, 200)
    assert not policy.wants_features
    return policy


def test_plain_passes_like_each_other_are_looked_at_now_and_then_and_all_counted() -> None:
    policy = settled_on_plain()
    before = policy.figures()
    decode_plainly(policy, 64)
    after = policy.figures()
    seen_s = after["judged_pass_seconds_total"] - before["judged_pass_seconds_total"]
    assert 6.0 <= seen_s <= 10.0, "one of eight, a second each"
    assert (
        after["draft_decisions_total{decision=plain}"] - before["draft_decisions_total{decision=plain}"]
        == 128
    )


def test_a_pass_with_prompts_among_plain_ones_is_learnt_from() -> None:
    policy = settled_on_plain()
    before_s = policy.figures()["judged_pass_seconds_total"]
    for _ in range(10):
        decode_plainly(policy, 2)
        decode_plainly(policy, 1, num_prefill_tokens=64)
    assert policy.figures()["judged_pass_seconds_total"] - before_s >= 10.0


def test_plain_passes_are_looked_at_however_soon_one_request_follows_the_other() -> None:
    policy = settled_on_plain()
    before_s = policy.figures()["judged_pass_seconds_total"]
    for uid in range(2, 102):
        for _ in range(4):
            policy.choose(Blocks([uid], [0], [()], [True]))
            policy.note_pass(Outcomes([uid], [0], [0]), PassLoad(), 1.0)
            assert not policy.choose_drafts([uid])
        policy.forget(uid)
    assert policy.figures()["judged_pass_seconds_total"] - before_s == pytest.approx(400 / 8, abs=2.0)


def test_drafts_whose_pass_was_not_run_say_nothing_of_the_next_one() -> None:
    policy = settled_on_plain()
    policy.choose(blocks_of([0.99] * 8, []))
    policy.choose(blocks_of([], []))
    before = policy.figures()
    policy.note_pass(outcomes_of([0, 0]), PassLoad(), 1.0)
    assert not policy.wants_features
    assert policy.figures() == before, "a plain pass of a stretch, which is not looked at"


def test_a_draft_that_comes_late_among_plain_passes_is_verified() -> None:
    policy = settled_on_plain()
    decode_plainly(policy, 1)
    assert policy.choose(blocks_of([0.99] * 8, []))[0] > 0


def test_what_was_decided_and_why_is_told() -> None:
    policy = DynamicVerifyLength(Random(0))
    play(policy, 0.1, 0.01, draft_s=0.01)
    figures = policy.figures()
    assert figures["draft_decisions_total{decision=draft}"] > 200, "four a pass"
    assert sum(figures[f"verify_stops_total{{reason={stop}}}"] for stop in Stop) == 59, (
        "the first has no price"
    )
    for what in ("pass", "draft"):
        predicted, measured = (figures[f"{kind}_{what}_seconds_total"] for kind in ("predicted", "judged"))
        assert predicted == pytest.approx(measured, rel=0.2)


def test_it_is_deterministic() -> None:
    def lengths() -> list[list[int]]:
        policy = DynamicVerifyLength(Random(5))
        random = Random(1)
        chosen = []
        for _ in range(150):
            chosen.append(policy.choose(blocks_of(*([random.random() for _ in range(15)] for _ in range(3)))))
            accepted = [_accepted(random, length, 0.7) for length in chosen[-1]]
            policy.note_pass(outcomes_of(chosen[-1], accepted), PassLoad(), 1.0 + 0.1 * sum(chosen[-1]))
            policy.choose_drafts(range(3))
        return chosen

    assert lengths() == lengths()


Q = [Fraction(1, 2), Fraction(1, 3), Fraction(1, 6)]
P = [Fraction(1, 6), Fraction(1, 2), Fraction(1, 3)]


@pytest.mark.parametrize("of_the_token", [False, True])
def test_sampled_output_is_the_targets_unless_confidences_are_those_of_the_drawn_tokens(
    of_the_token: bool,
) -> None:
    """One position matters: whether the first proposal is verified may not depend on it."""
    output = [Fraction(0)] * 3
    chosen = set()
    for first, second in product(range(3), repeat=2):
        policy = DynamicVerifyLength(Random(0), exploration=seldom())
        teach(policy, 0.6)
        confidences = [float(Q[first]), float(Q[second])] if of_the_token else [0.5, (0.1, 0.9, 0.6)[first]]
        (length,) = policy.choose(blocks_of(confidences, is_greedy=[False]))
        chosen.add(length)
        weight = Q[first] * Q[second]
        if length == 0:
            output = [mass + weight * p for mass, p in zip(output, P, strict=True)]
            continue
        accept = min(Fraction(1), P[first] / Q[first])
        output[first] += weight * accept
        residual = [max(p - q, Fraction(0)) for p, q in zip(P, Q, strict=True)]
        for token in range(3):
            output[token] += weight * (1 - accept) * residual[token] / sum(residual)
    assert len(chosen) > 1
    assert (output == P) is not of_the_token
