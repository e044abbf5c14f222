from __future__ import annotations

from math import inf

import pytest

from dspine_cluster.core.cache_lifetime import CacheLifetime


def test_it_is_infinite_while_nothing_is_evicted() -> None:
    lifetime = CacheLifetime()
    assert lifetime.seconds == inf
    for now_s in range(10):
        lifetime.note(now_s, 0, 100)
    assert lifetime.seconds == inf


def test_under_steady_eviction_it_is_the_time_in_which_everything_cached_is_replaced() -> None:
    lifetime = CacheLifetime(window_s=5.0)
    for tick in range(1000):
        lifetime.note(tick / 10, num_evicted=2 * tick, num_cached=600)
    assert lifetime.seconds == pytest.approx(30.0, rel=1e-6)


def test_it_grows_again_when_eviction_ends() -> None:
    lifetime = CacheLifetime(window_s=5.0)
    for tick in range(200):
        lifetime.note(tick / 10, num_evicted=2 * min(tick, 100), num_cached=600)
    assert lifetime.seconds > 100.0
