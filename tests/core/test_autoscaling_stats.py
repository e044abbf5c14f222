from __future__ import annotations

import pytest

from dspine_cluster.core.autoscaling_stats import RoundCurve

CURVE = RoundCurve((1, 5, 9), (0.01, 0.03, 0.07))


@pytest.mark.parametrize(
    ("num_requests", "seconds"), [(0, 0.01), (1, 0.01), (3, 0.02), (5, 0.03), (7, 0.05), (11, 0.09)]
)
def test_between_its_points_a_curve_is_linear_and_goes_on_behind_them(
    num_requests: int, seconds: float
) -> None:
    assert CURVE.at(num_requests) == pytest.approx(seconds)


def test_a_curve_that_fell_stays_where_it_ends() -> None:
    """No round takes no time, and division by it would end Serve's controller."""
    assert RoundCurve((1, 2), (0.02, 0.01)).at(64) == 0.01
