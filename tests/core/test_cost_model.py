from __future__ import annotations

from math import inf, nan

import pytest

from dspine_cluster.core.cost_model import CostModel
from dspine_cluster.errors import ConfigError

COSTS = CostModel()


def test_plain_decoding_is_bound_by_the_weights() -> None:
    assert COSTS.pass_s(1, 1, 1000) == COSTS.pass_s(1, 100, 1000)
    assert COSTS.pass_s(1, 1000, 1000) > 5 * COSTS.pass_s(1, 1, 1000)


def test_context_and_requests_cost() -> None:
    assert COSTS.pass_s(8, 8, 100_000) > COSTS.pass_s(8, 8, 1_000) > COSTS.pass_s(1, 8, 1_000)


def test_no_block_costs_no_draft() -> None:
    assert COSTS.drafts_s(0) == 0.0
    assert COSTS.drafts_s(8) > COSTS.drafts_s(1) > 0.0


@pytest.mark.parametrize("seconds", [-1e-9, nan, inf])
def test_times_that_cannot_be_are_refused(seconds: float) -> None:
    with pytest.raises(ConfigError, match="not negative"):
        CostModel(state_s=seconds)
