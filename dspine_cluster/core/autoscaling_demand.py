"""How many tokens a second are asked for: what is committed, and what piles up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp

from dspine_cluster.core.autoscaling_config import AutoscalingConfig
from dspine_cluster.core.autoscaling_stats import VerifierStats

_MIN_ELAPSED_S = 1e-3
"""Between figures that tell how anything changes."""
_MIN_TOKENS_PER_S = 1e-6
"""Below it nothing is generated: a ratio to it would tell nothing, and could be infinite."""
_MAX_LAG_RATIO = 1 / 3
"""Of the time that is planned ahead for: where requests get few tokens, more is needed, and soon."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Moving averages over the fleet. What comes a second = what is committed a second + how fast the work that is
    left grows; so demand is seen at once, even where it is not served yet."""

    level: float = 0.0
    """Tokens a second to be generated."""
    trend: float = 0.0
    """How it changes, tokens/s a second."""
    committed: float = 0.0
    prefilled: float = 0.0
    """Tokens a second, over a longer time: after a loss much is computed again at once, which will not go on."""
    outstanding_tokens: float | None = None
    """Left to be generated when last seen."""
    seen_at_s: float = 0.0
    lag_s: float = 0.0
    """How long after it was asked for a token is generated, on average over those of requests that run."""

    @property
    def prefill_ratio(self) -> float:
        """Prompt tokens computed for each generated one."""
        return self.prefilled / self.committed if self.committed > _MIN_TOKENS_PER_S else 0.0

    def ahead(self, seconds: float) -> float:
        """What will have to be generated in so many seconds; a falling trend is not relied on.

        An answer counts as asked for all at once, and is generated from then on: what verifiers have to do now is what
        was asked for a while ago, less than `level` on a rise and more on a fall.
        """
        lag_s = min(self.lag_s, _MAX_LAG_RATIO * seconds)
        return max(0.0, self.level + max(0.0, self.trend) * seconds - self.trend * lag_s)


def update_demand(
    demand: Demand,
    verifiers: Sequence[VerifierStats],
    coverage: float,
    now_s: float,
    config: AutoscalingConfig,
) -> Demand:
    """Take in the figures of those that are known, which stand for `coverage` of the fleet (0 to 1]."""
    committed = sum(v.committed_tokens_per_s for v in verifiers) / coverage
    running = sum(v.running_tokens for v in verifiers) / coverage
    outstanding = running + sum(v.waiting_tokens for v in verifiers) / coverage
    prefilled = sum(v.prefill_tokens_per_s for v in verifiers) / coverage
    if demand.outstanding_tokens is None:
        return Demand(committed, 0.0, committed, prefilled, outstanding, now_s)
    elapsed_s = now_s - demand.seen_at_s
    if elapsed_s < _MIN_ELAPSED_S:
        return demand
    asked = max(0.0, committed + (outstanding - demand.outstanding_tokens) / elapsed_s)
    weight = 1 - exp(-elapsed_s / config.smoothing_s)
    expected = max(0.0, demand.level + demand.trend * elapsed_s)
    level = expected + weight * (asked - expected)
    slope = (level - demand.level) / elapsed_s
    slowly = 1 - exp(-elapsed_s / config.trend_s)
    trend = demand.trend + slowly * (slope - demand.trend)
    lag_s = running / committed if committed > _MIN_TOKENS_PER_S else 0.0
    return replace(
        demand,
        level=level,
        trend=trend,
        committed=demand.committed + slowly * (committed - demand.committed),
        prefilled=demand.prefilled + slowly * (prefilled - demand.prefilled),
        outstanding_tokens=outstanding,
        seen_at_s=now_s,
        lag_s=demand.lag_s + slowly * (lag_s - demand.lag_s),
    )
