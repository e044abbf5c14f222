from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.bench.statistics import pooled_interval, quantile, ratio_interval

COLUMNS = st.lists(st.tuples(st.integers(1, 200), st.integers(1, 50)), min_size=2, max_size=40)


@given(COLUMNS)
def test_the_pooled_ratio_lies_in_its_interval_or_beside_it(columns: list[tuple[int, int]]) -> None:
    committed, rounds = zip(*columns, strict=True)
    low, high = pooled_interval(committed, rounds)
    ratios = [c / r for c, r in columns]
    assert min(ratios) - 1e-9 <= low <= high <= max(ratios) + 1e-9


def test_equal_prompts_leave_nothing_uncertain() -> None:
    assert pooled_interval([40.0] * 10, [10.0] * 10) == pytest.approx((4.0, 4.0))


def test_prompts_are_resampled_together_so_that_a_constant_ratio_is_certain() -> None:
    committed, rounds = [10.0, 200.0, 33.0], [5.0, 20.0, 3.0]
    doubled = [2 * c for c in committed]
    assert ratio_interval((doubled, rounds), (committed, rounds)) == pytest.approx((2.0, 2.0))


def test_more_prompts_narrow_the_interval() -> None:
    few = pooled_interval([10.0, 30.0] * 4, [5.0, 5.0] * 4)
    many = pooled_interval([10.0, 30.0] * 100, [5.0, 5.0] * 100)
    assert many[1] - many[0] < few[1] - few[0]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=50), st.floats(0.01, 1.0))
def test_a_quantile_is_not_exceeded_by_its_share_of_the_values(values: list[float], share: float) -> None:
    value = quantile(sorted(values), share)
    assert value in values
    assert sum(v <= value for v in values) >= share * len(values) - 1e-9
    assert sum(v < value for v in values) < share * len(values) + 1e-9
