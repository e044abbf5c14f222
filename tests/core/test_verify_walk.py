from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import accumulate, product
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.cost_curve import CostCurve, CostShape
from dspine_cluster.core.verify_walk import RoundPrice, Stop, Walk, choose_lengths
from tests.core import step_by_step_walk

EXPECTED = [0.6] * 15


def price(
    num_requests: int,
    *,
    token_s: float,
    constant_s: float = 1.0,
    buckets: Sequence[int] = (),
    base_s: float = 0.0,
) -> RoundPrice:
    curve = CostCurve(CostShape([0], [constant_s], [token_s], buckets), 1e-3)
    return RoundPrice(curve, num_requests, num_requests, base_s)


def walk(
    conditionals: Sequence[Sequence[float]],
    cost: RoundPrice,
    *,
    max_verified: int = 1000,
    in_full: Sequence[int] = (),
    expected: Sequence[float] = EXPECTED,
) -> Walk:
    return choose_lengths(
        [len(rows) for rows in conditionals],
        [range(len(rows)) for rows in conditionals],
        conditionals,
        expected,
        cost,
        max_verified=max_verified,
        in_full=in_full,
    )


def rate(conditionals: Sequence[Sequence[float]], lengths: Sequence[int], cost: RoundPrice) -> float:
    tokens = cost.base_tokens
    for rows, length in zip(conditionals, lengths, strict=True):
        survival = 1.0
        for conditional in rows[:length]:
            survival *= conditional
            tokens += survival
    return tokens / (cost.base_s + cost.curve.seconds(cost.num_tokens + sum(lengths)))


rows_strategy = st.lists(st.floats(0.01, 1.0), max_size=4)
blocks_strategy = st.lists(rows_strategy, min_size=1, max_size=3)


class Rows(Sequence[int]):
    """The cells of a block, which are asked for in order, once."""

    def __init__(self, length: int) -> None:
        self.num_asked = 0
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, position: Any) -> Any:
        assert position == self.num_asked
        self.num_asked += 1
        return position


@given(blocks_strategy, st.floats(0.0, 1.0), st.floats(0.0, 2.0))
def test_on_a_straight_cost_curve_no_other_lengths_give_more(
    conditionals: list[list[float]], token_s: float, base_s: float
) -> None:
    cost = price(len(conditionals), token_s=token_s, base_s=base_s)
    chosen = walk(conditionals, cost)
    best = max(
        rate(conditionals, lengths, cost) for lengths in product(*(range(len(r) + 1) for r in conditionals))
    )
    assert rate(conditionals, chosen.lengths, cost) == pytest.approx(best)
    assert chosen.expected_tokens / chosen.expected_s == pytest.approx(best)


@given(
    blocks_strategy, st.floats(0.0, 1.0), st.sampled_from([(), (2, 4, 8), (3, 6, 9, 12)]), st.integers(0, 6)
)
def test_a_row_is_asked_for_only_when_all_before_it_are_verified(
    conditionals: list[list[float]], token_s: float, buckets: Sequence[int], max_verified: int
) -> None:
    rows = [Rows(len(rates)) for rates in conditionals]
    chosen = choose_lengths(
        [len(rates) for rates in conditionals],
        rows,
        conditionals,
        EXPECTED,
        price(len(conditionals), token_s=token_s, buckets=buckets),
        max_verified=max_verified,
    )
    for own, length in zip(rows, chosen.lengths, strict=True):
        assert own.num_asked <= length + 1
    assert sum(chosen.lengths) <= max_verified


@st.composite
def curves(draw: st.DrawFn) -> CostCurve:
    steps = draw(st.lists(st.integers(1, 20), max_size=3))
    starts = [0, *accumulate(steps)]
    slopes = draw(st.lists(st.floats(0.0, 0.2), min_size=len(starts), max_size=len(starts)))
    values = [draw(st.floats(0.1, 2.0))]
    for step, slope in zip(steps, slopes, strict=False):
        values.append(values[-1] + step * slope)
    buckets = draw(st.sampled_from([(), (4, 8, 16, 24), (1, 6, 40)]))
    return CostCurve(CostShape(starts, values, slopes, buckets), 1e-3)


@given(st.data())
def test_it_takes_what_a_walk_without_shortcuts_takes(data: st.DataObject) -> None:
    rates = st.one_of(st.floats(0.0, 1.0), st.sampled_from([0.0, 0.5, 0.9, 1.0]))
    conditionals = data.draw(st.lists(st.lists(rates, max_size=6), min_size=1, max_size=6))
    expected = data.draw(st.lists(rates, min_size=6, max_size=6))
    num_requests = len(conditionals)
    cost = RoundPrice(
        data.draw(curves()),
        num_requests + data.draw(st.sampled_from([0, 0, 10])),
        num_requests + data.draw(st.floats(0.0, 3.0)),
        data.draw(st.floats(0.0, 1.0)),
    )
    max_verified = data.draw(st.one_of(st.just(1000), st.integers(0, 20)))
    in_full = data.draw(st.lists(st.integers(0, num_requests - 1), max_size=1))
    plain = step_by_step_walk.choose_lengths(
        [len(rows) for rows in conditionals],
        lambda block, position: conditionals[block][position],
        expected,
        cost,
        max_verified=max_verified,
        in_full=in_full,
    )
    chosen = walk(conditionals, cost, expected=expected, max_verified=max_verified, in_full=in_full)
    assert chosen == plain


def test_what_fills_a_bucket_is_free() -> None:
    conditionals = [[0.9, 0.1, 0.1, 0.1], [0.05] * 4]
    chosen = walk(conditionals, price(2, token_s=1.0, buckets=(4, 8, 16)))
    assert sum(chosen.lengths) == 2
    assert chosen.stop is Stop.PRICE


def test_a_step_is_crossed_for_what_the_whole_bucket_is_expected_to_give() -> None:
    conditionals = [[0.8] * 15, [0.8] * 15]
    cost = price(2, token_s=0.1, buckets=(2, 16))
    assert rate(conditionals, [1, 0], cost) < rate(conditionals, [0, 0], cost)
    assert sum(walk(conditionals, cost, expected=[0.8] * 15).lengths) == 14
    assert sum(walk(conditionals, cost, expected=[0.01] * 15).lengths) == 0


def test_room_bounds_what_is_verified() -> None:
    chosen = walk([[0.9] * 5, [0.8] * 5], price(2, token_s=0.0), max_verified=3)
    assert (sum(chosen.lengths), chosen.stop) == (3, Stop.ROOM)
    assert walk([[0.9] * 5], price(1, token_s=0.0)).stop is Stop.ALL


def test_the_likeliest_come_first() -> None:
    assert walk([[0.9] * 5, [0.3] * 5, []], price(3, token_s=0.0), max_verified=4).lengths == [4, 0, 0]


def test_a_block_can_be_verified_in_full_against_the_odds() -> None:
    cost = price(2, token_s=1.0)
    assert walk([[0.1] * 5, [0.1] * 5], cost).lengths == [0, 0]
    assert walk([[0.1] * 5, [0.1] * 5], cost, in_full=[1]).lengths == [0, 5]
    assert walk([[0.1] * 5, [0.1] * 5], cost, in_full=[1], max_verified=3).lengths == [0, 3]


def test_prompt_chunks_make_proposals_cheap() -> None:
    conditionals = [[0.3] * 5]
    plain = price(1, token_s=0.5)
    full = RoundPrice(plain.curve, 100, 1, 0.0)
    assert walk(conditionals, plain).lengths == [0]
    assert walk(conditionals, full).lengths[0] > 0


# Exact distributions: every block that can be drafted, with its probability, and all that verification makes of it.

NUM_PROPOSALS = 3
Tokens = tuple[int, ...]
Confidence = Callable[[int, Tokens, int], float]
"""Of a request, the proposals before a position, and the proposal at it."""


def random_rows(random: Random, vocabulary: Sequence[int]) -> dict[Tokens, list[Fraction]]:
    """A distribution over the vocabulary for every prefix."""
    rows = {}
    for length in range(NUM_PROPOSALS + 1):
        for prefix in product(vocabulary, repeat=length):
            weights = [random.randint(1, 9) for _ in vocabulary]
            rows[prefix] = [Fraction(weight, sum(weights)) for weight in weights]
    return rows


class Pair:
    """A target and a drafter of arbitrary rows, for some requests."""

    def __init__(self, num_requests: int, seed: int, *, num_tokens: int = 3) -> None:
        random = Random(seed)
        self.vocabulary = range(num_tokens)
        self.requests = range(num_requests)
        self.targets = [random_rows(random, self.vocabulary) for _ in self.requests]
        self.drafts = [random_rows(random, self.vocabulary) for _ in self.requests]
        self.noise = {
            (request, prefix): random.random() for request in self.requests for prefix in self.drafts[request]
        }
        self.lengths: set[Tokens] = set()

    def adapted(self, request: int, before: Tokens, proposal: int) -> float:
        """Anything that is a function of the proposals before."""
        return self.noise[request, before]

    def of_the_token(self, request: int, before: Tokens, proposal: int) -> float:
        """The drafter's probability of the proposal itself."""
        return float(self.drafts[request][before][proposal])

    def output(
        self, confidence: Confidence, choose: Callable[..., list[int]]
    ) -> dict[tuple[Tokens, ...], Fraction]:
        """The joint distribution of the first `NUM_PROPOSALS` tokens of all requests."""
        total: dict[tuple[Tokens, ...], Fraction] = {}
        for blocks in product(product(self.vocabulary, repeat=NUM_PROPOSALS), repeat=len(self.requests)):
            prob = Fraction(1)
            rows = []
            for request, block in zip(self.requests, blocks, strict=True):
                for position, proposal in enumerate(block):
                    prob *= self.drafts[request][block[:position]][proposal]
                rows.append([confidence(request, block[:j], block[j]) for j in range(NUM_PROPOSALS)])
            lengths = choose(rows)
            self.lengths.add(tuple(lengths))
            for outputs in product(
                *(
                    self._verified(request, block[:length])
                    for request, block, length in zip(self.requests, blocks, lengths, strict=True)
                )
            ):
                key = tuple(tokens for tokens, _ in outputs)
                share = prob
                for _, factor in outputs:
                    share *= factor
                total[key] = total.get(key, Fraction(0)) + share
        return total

    def exact(self) -> dict[tuple[Tokens, ...], Fraction]:
        per_request = [list(self._continued(request, (), Fraction(1))) for request in self.requests]
        result = {}
        for outputs in product(*per_request):
            prob = Fraction(1)
            for _, factor in outputs:
                prob *= factor
            result[tuple(tokens for tokens, _ in outputs)] = prob
        return result

    def _verified(self, request: int, proposals: Tokens) -> list[tuple[Tokens, Fraction]]:
        """What speculative sampling makes of the proposals, continued by plain decoding."""
        results: list[tuple[Tokens, Fraction]] = []
        reached = Fraction(1)
        for position, proposal in enumerate(proposals):
            before = proposals[:position]
            target, draft = self.targets[request][before], self.drafts[request][before]
            accept = min(Fraction(1), target[proposal] / draft[proposal])
            residual = [max(p - q, Fraction(0)) for p, q in zip(target, draft, strict=True)]
            if accept < 1:
                for token, mass in zip(self.vocabulary, residual, strict=True):
                    if mass:
                        prob = reached * (1 - accept) * mass / sum(residual)
                        results += self._continued(request, (*before, token), prob)
            reached *= accept
        results += self._continued(request, proposals, reached)
        merged: dict[Tokens, Fraction] = {}
        for tokens, prob in results:
            merged[tokens] = merged.get(tokens, Fraction(0)) + prob
        return list(merged.items())

    def _continued(self, request: int, prefix: Tokens, prob: Fraction) -> Iterator[tuple[Tokens, Fraction]]:
        if len(prefix) == NUM_PROPOSALS:
            yield prefix, prob
            return
        for token in self.vocabulary:
            share = self.targets[request][prefix][token]
            yield from self._continued(request, (*prefix, token), prob * share)


def choose(
    buckets: Sequence[int] = (), *, token_s: float = 0.35, max_verified: int = 100
) -> Callable[[list[list[float]]], list[int]]:
    def of(rows: list[list[float]]) -> list[int]:
        cost = price(len(rows), token_s=token_s, buckets=buckets)
        return walk(rows, cost, max_verified=max_verified).lengths

    return of


@pytest.mark.parametrize("buckets", [(), (1, 2, 4)], ids=["straight", "buckets"])
@pytest.mark.parametrize("seed", [2, 4, 5])
def test_sampled_output_has_the_targets_distribution(seed: int, buckets: Sequence[int]) -> None:
    pair = Pair(1, seed)
    assert pair.output(pair.adapted, choose(buckets)) == pair.exact()
    assert len(pair.lengths) > 1, "the choice depends on what was drafted"


@pytest.mark.parametrize("max_verified", [100, 4])
def test_sampled_outputs_of_a_batch_are_independent_and_the_targets(max_verified: int) -> None:
    pair = Pair(2, 4, num_tokens=2)
    assert pair.output(pair.adapted, choose((3, 5), token_s=0.1, max_verified=max_verified)) == pair.exact()
    assert len(pair.lengths) > 2


def test_the_check_sees_confidences_of_the_tokens_themselves() -> None:
    pair = Pair(1, 0)
    assert pair.output(pair.of_the_token, choose()) != pair.exact()


def test_the_check_sees_lengths_that_are_lowered_afterwards() -> None:
    pair = Pair(1, 4)

    def lowered(rows: list[list[float]]) -> list[int]:
        (length,) = choose()(rows)
        return [0 if length > 2 else length]

    assert pair.output(pair.adapted, lowered) != pair.exact()
    assert len(pair.lengths) > 1
