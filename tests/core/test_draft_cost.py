from __future__ import annotations

import pytest

from dspine_cluster.core.draft_cost import DraftCost


def test_drafts_cost_nothing_until_they_are_known_and_for_none() -> None:
    cost = DraftCost()
    assert cost.seconds(8) == 0.0
    for num_blocks in (1, 8, 64, 1, 8, 64, 32):
        cost.note(num_blocks, 0.0014 + 5e-5 * num_blocks)
    assert cost.seconds(16) == pytest.approx(0.0022, rel=0.05)
    assert cost.seconds(0) == 0.0


def test_drafts_that_take_longer_for_many_requests_are_learnt_in_a_few_batches() -> None:
    """Although only single ones were seen before."""
    cost = DraftCost()
    for _ in range(100):
        cost.note(1, 0.010)
    for _ in range(10):
        cost.note(16, 0.060)
    assert cost.seconds(16) == pytest.approx(0.060, rel=0.2)
    assert cost.seconds(1) == pytest.approx(0.010, rel=0.3)
