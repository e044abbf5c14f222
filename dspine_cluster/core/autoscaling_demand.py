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
    prefill_ratio: float = 0.0
    """Prompt tokens computed for each generated one."""
    outstanding_tokens: float | None = None
    """Left to be generated when last seen."""
    seen_at_s: float = 0.0

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
        ratio = prefilled / committed if committed else 0.0
        return Demand(committed, 0.0, ratio, outstanding, now_s)
    elapsed_s = now_s - demand.seen_at_s
    if elapsed_s <= 0:
        return demand
    asked = max(0.0, committed + (outstanding - demand.outstanding_tokens) / elapsed_s)
    weight = 1 - exp(-elapsed_s / config.smoothing_s)
    expected = max(0.0, demand.level + demand.trend * elapsed_s)
    level = expected + weight * (asked - expected)
    slope = (level - demand.level) / elapsed_s
    trend = demand.trend + (1 - exp(-elapsed_s / config.trend_s)) * (slope - demand.trend)
    ratio = demand.prefill_ratio
    if committed > 0:
        ratio += weight * (prefilled / committed - ratio)
    return replace(
        demand,
        level=level,
        trend=trend,
        prefill_ratio=ratio,
        outstanding_tokens=outstanding,
        seen_at_s=now_s,
    )
