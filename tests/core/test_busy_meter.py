from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.busy_meter import BusyMeter


def test_only_the_last_seconds_count() -> None:
    meter = BusyMeter(100.0, window_s=5.0)
    busy_s = 0.0
    for second in range(1, 21):
        busy_s += 0.8 if second <= 10 else 0.2
        ratio = meter.ratio(100.0 + second, busy_s)
    assert ratio == pytest.approx(0.2)


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 20)), min_size=1))
def test_it_is_a_ratio(steps: list[tuple[float, float]]) -> None:
    meter, now_s, busy_s = BusyMeter(0.0), 0.0, 0.0
    for elapsed_s, more_s in steps:
        now_s, busy_s = now_s + elapsed_s, busy_s + more_s
        assert 0.0 <= meter.ratio(now_s, busy_s) <= 1.0
