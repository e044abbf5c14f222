"""Dynamic verification on cost models that cross from memory-bound to compute-bound as requests come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

import pytest

from dspine_cluster.core.cost_model import CostModel
from dspine_cluster.core.dynamic_verify_length import DynamicVerifyLength
from dspine_cluster.core.halves import Halves, HalvesSettings
from tests.sim.simulated_rounds import DraftRows, RoundCosts, RoundsReport, Row, SimulatedRounds

NUM_PROPOSALS = 15
KV_TOKENS = 1000


@dataclass(frozen=True, slots=True)
class Buckets:
    """Pads the tokens of a pass, as captured graphs do."""

    costs: RoundCosts
    sizes: Sequence[int]

    def pass_s(self, num_requests: int, num_tokens: int, num_kv_tokens: int) -> float:
        padded = next((size for size in self.sizes if size >= num_tokens), num_tokens)
        return self.costs.pass_s(num_requests, padded, num_kv_tokens)

    def drafts_s(self, num_blocks: int) -> float:
        return self.costs.drafts_s(num_blocks)


@dataclass(frozen=True, slots=True)
class TwoCores:
    """The miniature on two cores: tokens get cheaper the more there are, and drafts are dear."""

    def pass_s(self, num_requests: int, num_tokens: int, num_kv_tokens: int) -> float:
        return 1e-3 * (4.8 + 0.39 * min(num_tokens, 8) + 0.17 * max(0, num_tokens - 8))

    def drafts_s(self, num_blocks: int) -> float:
        return 1e-3 * (5.5 + 2.4 * num_blocks) if num_blocks else 0.0


@dataclass(frozen=True, slots=True)
class Draft:
    """Drafts whose time is such that plain decoding is exactly as fast."""

    costs: RoundCosts
    seconds: float

    def pass_s(self, num_requests: int, num_tokens: int, num_kv_tokens: int) -> float:
        return self.costs.pass_s(num_requests, num_tokens, num_kv_tokens)

    def drafts_s(self, num_blocks: int) -> float:
        return self.seconds if num_blocks else 0.0


SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
COSTS: dict[str, RoundCosts] = {
    "roofline": CostModel(),
    "buckets": Buckets(CostModel(), SIZES),
    "two cores": TwoCores(),
}


def rows(acceptance: float, spread: float = 0.0, *, is_told: bool = True) -> DraftRows:
    """Blocks of independent positions of this mean acceptance; the confidence is the acceptance, or says nothing."""

    def draft(uid: int, random: Random) -> list[Row]:
        drawn = [acceptance + spread * random.uniform(-1.0, 1.0) for _ in range(NUM_PROPOSALS)]
        return [Row(value, value if is_told else 0.5) for value in drawn]

    return draft


def plain_rate(costs: RoundCosts, num_requests: int) -> float:
    return num_requests / costs.pass_s(num_requests, num_requests, KV_TOKENS * num_requests)


def full_rate(costs: RoundCosts, num_requests: int, acceptance: float, length: int = NUM_PROPOSALS) -> float:
    tokens = num_requests * sum(acceptance**j for j in range(length + 1))
    pass_s = costs.pass_s(num_requests, num_requests * (1 + length), KV_TOKENS * num_requests)
    return tokens / (costs.drafts_s(num_requests) + pass_s)


def simulate(
    costs: RoundCosts,
    draft_rows: DraftRows,
    num_requests: int,
    *,
    noise: float = 0.0,
    hiccup_share: float = 0.0,
    unseen_s: float = 0.0,
) -> tuple[DynamicVerifyLength, SimulatedRounds]:
    policy = DynamicVerifyLength(Random(1), buckets=costs.sizes if isinstance(costs, Buckets) else ())
    policy.halves = Halves(HalvesSettings(begin_ratio=0.0))  # there are none in simulated rounds
    simulation = SimulatedRounds(
        policy,
        costs,
        draft_rows,
        num_requests,
        Random(2),
        num_kv_tokens_each=KV_TOKENS,
        noise=noise,
        hiccup_share=hiccup_share,
        unseen_s=unseen_s,
    )
    return policy, simulation


def settled(simulation: SimulatedRounds, num_passes: int) -> RoundsReport:
    simulation.run(60)
    return simulation.run(num_passes)


@pytest.mark.parametrize("name", COSTS)
@pytest.mark.parametrize(("acceptance", "is_told"), [(0.3, True), (0.6, True), (0.6, False), (0.85, True)])
@pytest.mark.parametrize("num_requests", [1, 4, 12, 48])
def test_never_slower_than_the_better_of_plain_and_full_blocks(
    name: str, acceptance: float, is_told: bool, num_requests: int
) -> None:
    costs = COSTS[name]
    _, simulation = simulate(costs, rows(acceptance, 0.14, is_told=is_told), num_requests)
    report = settled(simulation, max(40, 400 // num_requests))
    best = max(plain_rate(costs, num_requests), full_rate(costs, num_requests, acceptance))
    # The rows of one request alone are few: what they give differs from the mean.
    assert report.tokens_per_s >= 0.97 * best


@pytest.mark.parametrize("name", ["roofline", "buckets"])
@pytest.mark.parametrize("num_requests", [8, 16, 32])
def test_lengths_are_nearly_the_best(name: str, num_requests: int) -> None:
    costs = COSTS[name]
    _, simulation = simulate(costs, rows(0.8, 0.2), num_requests)
    report = settled(simulation, 60)
    best = max(full_rate(costs, num_requests, 0.8, length) for length in range(NUM_PROPOSALS + 1))
    assert report.tokens_per_s >= 0.97 * best


@pytest.mark.parametrize("name", ["roofline", "buckets"])
def test_lengths_fall_smoothly_as_requests_come(name: str) -> None:
    lengths = []
    for num_requests in (1, 4, 8, 11, 16, 22, 32, 45, 64, 90):
        _, simulation = simulate(COSTS[name], rows(0.8, 0.2), num_requests)
        simulation.run(30)
        report = simulation.run(30)
        lengths.append(report.num_verified / (30 * num_requests))
    assert lengths[0] > 14.0
    assert lengths[-1] < 4.0
    assert all(after < before + 0.5 for before, after in pairwise(lengths)), lengths
    assert max(before - after for before, after in pairwise(lengths)) < 5.5, lengths


@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize("name", ["roofline", "two cores"])
def test_it_does_not_flap_where_drafting_and_plain_decoding_are_as_fast(name: str, noise: float) -> None:
    num_requests = 4
    plain = plain_rate(COSTS[name], num_requests)
    slack_s = max(
        1 / plain * num_requests * sum(0.6**j for j in range(length + 1))
        - COSTS[name].pass_s(num_requests, num_requests * (1 + length), KV_TOKENS * num_requests)
        for length in range(16)
    )
    costs = Draft(COSTS[name], slack_s)
    policy, simulation = simulate(
        costs, rows(0.6, is_told=False), num_requests, noise=noise, hiccup_share=0.01 if noise else 0.0
    )
    simulation.run(100)
    before = policy.draft_or_plain.num_switches
    report = simulation.run(600)
    assert (policy.draft_or_plain.num_switches - before) / num_requests <= 4
    assert report.tokens_per_s >= 0.97 * plain


@pytest.mark.parametrize("noise", [0.0, 0.15])
@pytest.mark.parametrize(
    ("name", "num_requests", "within_s"), [("roofline", 1, 4.0), ("two cores", 1, 4.0), ("roofline", 32, 4.0)]
)
def test_it_recovers_when_acceptance_returns(
    name: str, num_requests: int, within_s: float, noise: float
) -> None:
    costs = COSTS[name]
    acceptance = 0.05

    def draft(uid: int, random: Random) -> list[Row]:
        return [Row(acceptance, 0.7)] * NUM_PROPOSALS

    policy, simulation = simulate(costs, draft, num_requests, noise=noise)
    simulation.run(150)
    poor = simulation.run(200)
    assert policy.draft_or_plain.num_drafting == 0
    assert poor.tokens_per_s >= 0.97 * plain_rate(costs, num_requests)
    acceptance = 0.9
    changed_s = simulation.now_s
    while simulation.now_s < changed_s + within_s:
        simulation.run(10)
    report = simulation.run(60)
    assert report.tokens_per_s >= 0.95 * full_rate(costs, num_requests, acceptance)


@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize(
    ("name", "num_requests", "acceptance"), [("roofline", 4, 0.5), ("two cores", 2, 0.85)]
)
def test_what_rounds_take_beside_drafts_and_passes_counts_too(
    name: str, num_requests: int, acceptance: float, noise: float
) -> None:
    costs = COSTS[name]
    plain, full = plain_rate(costs, num_requests), full_rate(costs, num_requests, acceptance)
    policy, simulation = simulate(costs, rows(acceptance), num_requests, noise=noise)
    simulation.run(200)
    assert policy.draft_or_plain.num_drafting == num_requests
    tokens = num_requests * sum(acceptance**j for j in range(16))
    policy, simulation = simulate(
        costs, rows(acceptance), num_requests, noise=noise, unseen_s=tokens / plain / 0.7 - tokens / full
    )
    simulation.run(200)
    report = simulation.run(1000)
    assert report.tokens_per_s >= 0.97 * plain


def test_requests_that_nothing_speaks_for_decode_plainly_beside_the_others() -> None:
    def draft(uid: int, random: Random) -> list[Row]:
        return [Row(0.9 if uid % 2 else 0.05, 0.5)] * NUM_PROPOSALS

    costs = TwoCores()
    policy, simulation = simulate(costs, draft, 8)
    simulation.run(1000)
    report = simulation.run(200)
    assert not any(policy.draft_or_plain.is_drafting(uid) for uid in range(0, 8, 2))
    assert report.tokens_per_s > 1.2 * plain_rate(costs, 8)


@pytest.mark.parametrize("name", COSTS)
def test_the_first_passes_cost_little(name: str) -> None:
    costs = COSTS[name]
    _, simulation = simulate(costs, rows(0.5, 0.3), 16)
    report = simulation.run(300)
    best = max(plain_rate(costs, 16), full_rate(costs, 16, 0.5))
    assert report.tokens_per_s >= 0.9 * best
