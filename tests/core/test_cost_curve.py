from __future__ import annotations

from dspine_cluster.core.cost_curve import CostCurve, CostShape

CURVE = CostCurve(
    CostShape([0, 8, 64, 128], [1.0, 1.8, 7.4, 7.4], [0.1, 0.1, 0.0, 0.2], (4, 16, 32)),
    plain_tokens=4,
    block_s=0.5,
    base_s=2.0,
)


def test_edges_are_full_buckets_and_then_knots() -> None:
    assert [edge for edge, _ in CURVE.edges(4, 100)] == [16, 32, 64, 100]
    assert CURVE.edges(100, 100) == []


def test_edges_come_with_what_a_pass_of_them_takes() -> None:
    assert CURVE.edges(4, 200) == [(edge, CURVE.seconds(edge)) for edge in (16, 32, 64, 128, 200)]
    dear = CostCurve(CURVE.shape, min_s=8.0)
    assert dear.edges(4, 200) == [(edge, dear.seconds(edge)) for edge in (16, 32, 64, 128, 200)]


def test_a_pass_takes_what_the_bucket_does_that_it_is_padded_to() -> None:
    assert CURVE.seconds(5) == CURVE.seconds(16) < CURVE.seconds(17)


def test_the_first_proposal_costs_what_blocks_do() -> None:
    assert CURVE.seconds(5) - CURVE.seconds(4) > 0.5
    assert CURVE.stretch(3) == (4, 0.0)
