from __future__ import annotations

import pytest

from dspine_cluster.core.awake_clock import AwakeClock


def test_it_runs_like_the_clock_behind_it_while_it_is_asked() -> None:
    times = iter([100.0, 100.5, 101.25])
    clock = AwakeClock(1.0, lambda: next(times))
    assert [clock(), clock()] == [0.5, 1.25]


def test_of_a_stop_of_its_process_only_the_longest_gap_counts() -> None:
    times = iter([0.0, 0.5, 60.5, 61.0])
    clock = AwakeClock(1.0, lambda: next(times))
    assert [clock(), clock(), clock()] == pytest.approx([0.5, 1.5, 2.0])
