from __future__ import annotations

from dspine_cluster.core.cost_model import CostModel

COSTS = CostModel()


def test_plain_decoding_is_bound_by_the_weights() -> None:
    assert COSTS.pass_s(1, 1, 1000) == COSTS.pass_s(1, 100, 1000)
    assert COSTS.pass_s(1, 1000, 1000) > 5 * COSTS.pass_s(1, 1, 1000)


def test_context_and_requests_cost() -> None:
    assert COSTS.pass_s(8, 8, 100_000) > COSTS.pass_s(8, 8, 1_000) > COSTS.pass_s(1, 8, 1_000)


def test_no_block_costs_no_draft() -> None:
    assert COSTS.drafts_s(0) == 0.0
    assert COSTS.drafts_s(8) > COSTS.drafts_s(1) > 0.0
