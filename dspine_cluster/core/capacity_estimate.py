"""What batches of other sizes would give, by costs and acceptance that were learnt from those that ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dspine_cluster.core.draft_or_plain import DraftSeconds, PassCurve
from dspine_cluster.core.draft_value import Gap, SurvivalHistogram, best_rate


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens a second of one batch."""

    plain: float
    drafted: float | None
    """None where nothing is known of drafts."""


@dataclass(frozen=True, slots=True)
class CapacityEstimate:
    """Rates of batches of requests like the present ones."""

    rates: tuple[Rates, ...]
    prefill_token_s: float
    """What a prompt token adds to a pass."""


def rates_of(
    sizes: Sequence[int],
    promises: Sequence[Sequence[Sequence[float]]],
    curve_of: PassCurve,
    draft_s_of: DraftSeconds,
) -> tuple[Rates, ...]:
    """Rates in lockstep, as much verified as pays.

    Args:
        sizes: numbers of requests in a batch.
        promises: of each present request, the survivals of blocks that are all as likely.
        curve_of: the cost of a pass of that many requests, with features or without.
        draft_s_of: the time of a batch of that many drafts; 0 while none has come.
    """
    histogram = SurvivalHistogram()
    for curves in promises:
        histogram.add(curves)
    rows = histogram.rows()
    rates = []
    for size in sizes:
        draft_s = draft_s_of(size)
        drafted = None
        if rows and draft_s > 0.0:
            scale = size / histogram.num_requests
            scaled = [(survival, count * scale) for survival, count in rows]
            drafted = best_rate(scaled, size, curve_of(size, True), Gap(0.0, draft_s))
        rates.append(Rates(size / curve_of(size, False).seconds(size), drafted))
    return tuple(rates)
