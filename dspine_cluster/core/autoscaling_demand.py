"""How many tokens a second are asked for: what is committed, and what piles up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp

from dspine_cluster.core.autoscaling_config import AutoscalingConfig
from dspine_cluster.core.autoscaling_stats import VerifierStats


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

    @property
    def prefill_ratio(self) -> float:
        """Prompt tokens computed for each generated one."""
        return self.prefilled / self.committed if self.committed else 0.0

    def ahead(self, seconds: float) -> float:
        """What will be asked for; a falling trend is not relied on."""
        return max(0.0, self.level + max(0.0, self.trend) * seconds)


def update_demand(
    demand: Demand,
    verifiers: Sequence[VerifierStats],
    coverage: float,
    now_s: float,
    config: AutoscalingConfig,
) -> Demand:
    """Take in the figures of those that are known, which stand for `coverage` of the fleet (0 to 1]."""
    committed = sum(v.committed_tokens_per_s for v in verifiers) / coverage
    outstanding = sum(v.running_tokens + v.waiting_tokens for v in verifiers) / coverage
    prefilled = sum(v.prefill_tokens_per_s for v in verifiers) / coverage
    if demand.outstanding_tokens is None:
        return Demand(committed, 0.0, committed, prefilled, outstanding, now_s)
    elapsed_s = now_s - demand.seen_at_s
    if elapsed_s <= 0:
        return demand
    asked = max(0.0, committed + (outstanding - demand.outstanding_tokens) / elapsed_s)
    weight = 1 - exp(-elapsed_s / config.smoothing_s)
    expected = max(0.0, demand.level + demand.trend * elapsed_s)
    level = expected + weight * (asked - expected)
    slope = (level - demand.level) / elapsed_s
    slowly = 1 - exp(-elapsed_s / config.trend_s)
    trend = demand.trend + slowly * (slope - demand.trend)
    return replace(
        demand,
        level=level,
        trend=trend,
        committed=demand.committed + slowly * (committed - demand.committed),
        prefilled=demand.prefilled + slowly * (prefilled - demand.prefilled),
        outstanding_tokens=outstanding,
        seen_at_s=now_s,
    )
