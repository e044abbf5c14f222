"""How much one client may ask for: requests and tokens a minute, and requests at a time.

Nothing here reads a clock: times are seconds of one that never goes back.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class TokenBucket:
    """An allowance that refills evenly up to `burst`. What is taken beyond it is owed, and has to refill first."""

    def __init__(self, rate_per_s: float, burst: float, now_s: float) -> None:
        """It begins full."""
        assert rate_per_s > 0.0
        assert burst > 0.0
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._level = burst
        self._updated_at_s = now_s

    def level(self, now_s: float) -> float:
        """What is there; negative where it is owed."""
        refilled = self._level + self._rate_per_s * max(0.0, now_s - self._updated_at_s)
        return min(self._burst, refilled)

    def wait_s(self, amount: float, now_s: float) -> float:
        """Seconds until `amount` is there; until the bucket is full for more than it ever holds."""
        missing = min(amount, self._burst) - self.level(now_s)
        return max(0.0, missing / self._rate_per_s)

    def take(self, amount: float, now_s: float) -> None:
        """Take `amount`, whether it is there or not."""
        self._level = self.level(now_s) - amount
        self._updated_at_s = max(now_s, self._updated_at_s)


@dataclass(frozen=True, slots=True)
class RateLimits:
    """What one client may ask for; None does not limit."""

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    """Prompt and output tokens."""
    max_concurrent_requests: int | None = None
    """Completions at a time: a request with `n` counts `n` times."""


class Limit(StrEnum):
    """Which limit was reached."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    CONCURRENCY = "concurrency"


@dataclass(frozen=True, slots=True)
class Excess:
    """Why something is refused."""

    limit: Limit
    retry_after_s: float
    """When it can be taken at the earliest. Nobody knows when running requests end: 1 s stands for these."""


class RateLimiter:
    """What one client has asked for. A minute's allowance may be used at once."""

    def __init__(self, limits: RateLimits, now_s: float) -> None:
        self._max_concurrent = limits.max_concurrent_requests
        self._requests = _bucket(limits.requests_per_minute, now_s)
        self._tokens = _bucket(limits.tokens_per_minute, now_s)
        self._num_open = 0

    @property
    def max_concurrent(self) -> int | None:
        """Completions at a time."""
        return self._max_concurrent

    @property
    def num_open(self) -> int:
        """Completions that run or wait."""
        return self._num_open

    def arrive(self, now_s: float) -> Excess | None:
        """Count a request; one that is refused is not counted."""
        if self._requests is None:
            return None
        wait_s = self._requests.wait_s(1.0, now_s)
        if wait_s > 0.0:
            return Excess(Limit.REQUESTS, wait_s)
        self._requests.take(1.0, now_s)
        return None

    def open(self, num_completions: int, prompt_tokens: int, now_s: float) -> Excess | None:
        """Begin `num_completions`, and count their prompts; unless one limit refuses them, and nothing is counted.

        More tokens than a minute has are taken when the allowance is whole, and owed.
        """
        if self._max_concurrent is not None and self._num_open + num_completions > self._max_concurrent:
            return Excess(Limit.CONCURRENCY, 1.0)
        if self._tokens is not None:
            wait_s = self._tokens.wait_s(prompt_tokens, now_s)
            if wait_s > 0.0:
                return Excess(Limit.TOKENS, wait_s)
            self._tokens.take(prompt_tokens, now_s)
        self._num_open += num_completions
        return None

    def close(self, num_completions: int, output_tokens: int, now_s: float) -> None:
        """End what `open` began. Its output was not known before: it is owed where the allowance has not enough."""
        self._num_open -= num_completions
        assert self._num_open >= 0
        if self._tokens is not None:
            self._tokens.take(output_tokens, now_s)


def _bucket(per_minute: float | None, now_s: float) -> TokenBucket | None:
    return None if per_minute is None else TokenBucket(per_minute / 60.0, per_minute, now_s)
