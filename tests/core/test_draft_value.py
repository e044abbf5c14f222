from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.cost_curve import CostCurve, CostShape
from dspine_cluster.core.draft_value import Gap, SurvivalHistogram, best_rate, gap_of

NO_GAP = Gap(0.0, 0.0)


def straight(constant_s: float, token_s: float, buckets: tuple[int, ...] = ()) -> CostCurve:
    return CostCurve(CostShape([0], [constant_s], [token_s], buckets))


def test_without_proposals_it_is_the_rate_of_plain_decoding() -> None:
    assert best_rate([], 8, straight(1.0, 0.5), NO_GAP) == pytest.approx(8 / 5)


survivals = st.lists(st.sampled_from([0.95, 0.8, 0.6, 0.4, 0.2, 0.1, 0.03]), max_size=12)


@given(survivals, st.integers(1, 4), st.floats(0.0, 1.0), st.floats(0.0, 2.0))
def test_it_is_the_best_of_all_numbers_of_proposals(
    curve: list[float], num_requests: int, token_s: float, gap_s: float
) -> None:
    histogram = SurvivalHistogram()
    histogram.add([curve])
    cost = straight(1.0, token_s)
    best = max(
        (num_requests + sum(sorted(curve, reverse=True)[:number]))
        / (gap_s + cost.seconds(num_requests + number))
        for number in range(len(curve) + 1)
    )
    assert best_rate(histogram.rows(), num_requests, cost, Gap(0.0, gap_s)) == pytest.approx(best)


def test_it_fills_buckets() -> None:
    histogram = SurvivalHistogram()
    histogram.add([[0.5] * 12])
    cost = straight(0.0, 1.0, (4, 8))
    assert best_rate(histogram.rows(), 1, cost, NO_GAP) == pytest.approx((1 + 3 * 0.5) / 4)


def test_curves_of_a_request_are_alternatives() -> None:
    histogram = SurvivalHistogram()
    histogram.add([[0.9, 0.8], [0.9, 0.1]])
    assert histogram.num_requests == 1
    assert sum(count for _, count in histogram.rows()) == pytest.approx(2.0)
    assert sum(count * survival for survival, count in histogram.rows()) == pytest.approx(1.35)


def test_plain_requests_go_on_while_drafts_are_made() -> None:
    assert gap_of(0, 2.5, 0.0) == Gap(0.0, 2.5)
    assert gap_of(3, 2.5, 1.0) == Gap(9.0, 3.0)
    assert gap_of(3, 0.5, 1.0) == Gap(3.0, 1.0)
    assert gap_of(3, 0.0, 1.0) == Gap(0.0, 0.0), "nothing is drafted"
