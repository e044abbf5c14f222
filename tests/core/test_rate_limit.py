from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.rate_limit import Limit, RateLimiter, RateLimits, TokenBucket

ARRIVALS = st.lists(st.tuples(st.floats(0, 30), st.integers(1, 50)), max_size=60)


@given(ARRIVALS, st.floats(0.1, 20), st.floats(1, 100))
def test_a_bucket_gives_no_more_than_its_burst_and_rate(
    arrivals: list[tuple[float, int]], rate: float, burst: float
) -> None:
    bucket = TokenBucket(rate, burst, 0.0)
    now_s, taken, largest = 0.0, 0.0, 0.0
    for gap_s, amount in arrivals:
        now_s += gap_s
        if bucket.wait_s(amount, now_s) == 0.0:
            bucket.take(amount, now_s)
            taken += amount
            largest = max(largest, amount)
    assert taken <= burst + rate * now_s + max(0.0, largest - burst) + 1e-6


@given(ARRIVALS, st.integers(1, 200))
def test_after_the_time_that_a_bucket_names_the_amount_is_taken(
    arrivals: list[tuple[float, int]], amount: int
) -> None:
    bucket = TokenBucket(2.0, 60.0, 0.0)
    now_s = 0.0
    for gap_s, taken in arrivals:
        now_s += gap_s
        bucket.take(taken, now_s)
    assert bucket.wait_s(amount, now_s + bucket.wait_s(amount, now_s)) == pytest.approx(0.0, abs=1e-6)


def test_a_clock_that_stands_still_refills_nothing() -> None:
    bucket = TokenBucket(1.0, 10.0, 5.0)
    bucket.take(10.0, 5.0)
    assert bucket.level(5.0) == bucket.level(4.0) == 0.0


def test_requests_beyond_a_minutes_allowance_are_told_when_to_come_back() -> None:
    limiter = RateLimiter(RateLimits(requests_per_minute=3), 0.0)
    assert [limiter.arrive(0.0) for _ in range(3)] == [None] * 3
    excess = limiter.arrive(0.0)
    assert excess is not None
    assert (excess.limit, excess.retry_after_s) == (Limit.REQUESTS, 20.0)
    assert limiter.arrive(19.9) is not None
    assert limiter.arrive(20.0) is None


def test_every_completion_counts_as_concurrent_until_it_is_closed() -> None:
    limiter = RateLimiter(RateLimits(max_concurrent_requests=4), 0.0)
    assert limiter.open(3, 10, 0.0) is None
    excess = limiter.open(2, 10, 0.0)
    assert excess is not None
    assert excess.limit is Limit.CONCURRENCY
    limiter.close(3, 0, 0.0)
    assert limiter.open(4, 10, 0.0) is None


def test_output_is_owed_and_delays_the_next_prompt() -> None:
    limiter = RateLimiter(RateLimits(tokens_per_minute=60), 0.0)
    assert limiter.open(1, 20, 0.0) is None
    limiter.close(1, 100, 0.0)
    excess = limiter.open(1, 10, 0.0)
    assert excess is not None
    assert (excess.limit, excess.retry_after_s) == (Limit.TOKENS, 70.0)
    assert limiter.open(1, 10, 70.0) is None


def test_a_prompt_of_more_than_a_minutes_tokens_is_taken_when_the_allowance_is_whole() -> None:
    limiter = RateLimiter(RateLimits(tokens_per_minute=60), 0.0)
    assert limiter.open(1, 200, 0.0) is None
    assert limiter.open(1, 1, 0.0) is not None


def test_what_is_refused_is_not_counted() -> None:
    limiter = RateLimiter(RateLimits(tokens_per_minute=60, max_concurrent_requests=1), 0.0)
    assert limiter.open(1, 60, 0.0) is None
    limiter.close(1, 0, 0.0)
    for _ in range(5):
        assert limiter.open(1, 30, 0.0) is not None
    assert limiter.num_open == 0
    assert limiter.open(1, 30, 30.0) is None


def test_no_limits_refuse_nothing() -> None:
    limiter = RateLimiter(RateLimits(), 0.0)
    assert all(limiter.arrive(0.0) is None and limiter.open(9, 10**6, 0.0) is None for _ in range(100))
