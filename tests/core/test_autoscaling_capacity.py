from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.autoscaling_capacity import slowness, sustainable
from dspine_cluster.core.autoscaling_stats import RoundCurve, VerifierStats

CURVE = RoundCurve((1, 32, 64), (0.02, 0.03, 0.06))
BASE = VerifierStats("v", 0.0, CURVE, max_requests=64, acceptance_length=3.0, prefill_token_s=7e-5)
LENGTHS = st.floats(1.0, 16.0)


def test_the_batch_is_the_largest_whose_rounds_are_short_enough() -> None:
    found = sustainable(BASE, 0.0, 0.01)
    assert found.num_requests == pytest.approx(32, abs=0.1)
    assert found.tokens_per_s == pytest.approx(32 * 3 / 0.03, rel=0.01)


@given(LENGTHS, LENGTHS)
def test_a_longer_acceptance_length_bears_more(one: float, other: float) -> None:
    low, high = sorted((one, other))
    bears = [sustainable(replace(BASE, acceptance_length=a), 0.0, 0.01).tokens_per_s for a in (low, high)]
    assert bears[0] <= bears[1] * (1 + 1e-9)


@given(LENGTHS, st.floats(0, 20))
def test_the_objective_holds_wherever_one_request_meets_it(length: float, prefill_ratio: float) -> None:
    found = sustainable(replace(BASE, acceptance_length=length), prefill_ratio, 0.01)
    assert 1.0 <= found.num_requests <= 64
    assert found.num_requests == 1.0 or found.round_s <= 0.01 * length + 1e-9


def test_prompts_take_their_part_of_rounds() -> None:
    assert sustainable(BASE, 10.0, 0.01).tokens_per_s < 0.7 * sustainable(BASE, 0.0, 0.01).tokens_per_s


def test_memory_bounds_the_batch() -> None:
    full = replace(BASE, running_requests=8, page_usage_ratio=0.5)
    assert sustainable(full, 0.0, 1.0).num_requests == pytest.approx(16)


def test_a_slow_node_is_seen_by_its_rounds_without_what_is_not_its_own() -> None:
    slow = replace(BASE, running_requests=32, round_s=0.1, prefill_s=0.02, draft_queue_s=0.02)
    assert slowness(slow) == pytest.approx(2.0)
    assert sustainable(slow, 0.0, 0.01).tokens_per_s < 0.6 * sustainable(BASE, 0.0, 0.01).tokens_per_s
