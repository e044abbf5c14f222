from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random

import pytest

from dspine_cluster.core.cost_model import CostModel
from dspine_cluster.core.verify_length import (
    NO_LOAD,
    Blocks,
    FixedVerifyLength,
    Outcomes,
    PassLoad,
    VerifyLengthPolicy,
)
from tests.sim.simulated_rounds import Row, SimulatedRounds

COSTS = CostModel()


def rows(uid: int, random: Random) -> list[Row]:
    return [Row(0.8, 0.7)] * 15


def simulate(policy: VerifyLengthPolicy, num_requests: int) -> SimulatedRounds:
    return SimulatedRounds(policy, COSTS, rows, num_requests, Random(0))


def test_plain_decoding_takes_what_its_passes_take() -> None:
    report = simulate(FixedVerifyLength(0), 8).run(50)
    assert report.tokens_per_s == pytest.approx(8 / COSTS.pass_s(8, 8, 8000))
    assert (report.num_plain_passes, report.num_blocks) == (50, 0)


def test_full_blocks_take_drafts_and_passes_one_after_the_other() -> None:
    report = simulate(FixedVerifyLength(15), 4).run(50)
    tokens = 4 * (1 + sum(0.8**j for j in range(1, 16)))
    seconds = COSTS.drafts_s(4) + COSTS.pass_s(4, 64, 4000)
    assert report.tokens_per_s == pytest.approx(tokens / seconds)
    assert report.verify_length == 15


class FirstOnly(VerifyLengthPolicy):
    """Drafts for request 0 alone, and remembers what it is told."""

    wants_drafts = True

    def __init__(self) -> None:
        self.passes: list[list[int]] = []
        self.accepted = 0
        self.taken_s: list[float] = []

    def choose(self, blocks: Blocks, load: PassLoad = NO_LOAD) -> list[int]:
        self.passes.append(list(blocks.uids))
        return list(blocks.num_proposals)

    def choose_drafts(self, uids: Sequence[int]) -> Collection[int]:
        return {0}

    def note_pass(self, outcomes: Outcomes, load: PassLoad, taken_s: float) -> None:
        self.accepted += sum(outcomes.num_accepted)
        self.taken_s.append(taken_s)


def test_plain_requests_go_on_while_drafts_are_made() -> None:
    policy = FirstOnly()
    simulate(policy, 3).run(6)
    assert policy.passes == [[1, 2], [0, 1, 2]] * 3


def test_what_is_accepted_agrees_with_what_is_expected() -> None:
    policy = FirstOnly()
    report = simulate(policy, 1).run(400)
    assert report.num_tokens == pytest.approx(400 + policy.accepted, rel=0.05)


def test_noise_is_in_what_is_measured_only() -> None:
    policy = FirstOnly()
    noisy = SimulatedRounds(policy, COSTS, rows, 1, Random(0), noise=0.2, hiccup_share=0.1).run(100)
    assert noisy.seconds == pytest.approx(simulate(FirstOnly(), 1).run(100).seconds)
    assert max(policy.taken_s) > 3 * min(policy.taken_s)
