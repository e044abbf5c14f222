"""What drafting for some requests and not for others would give, judged before anything is drafted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from dspine_cluster.core.cost_curve import CostCurve

_NUM_BINS = 32
_SCALE = _NUM_BINS * (1.0 - 1e-12)
"""A survival of 1 belongs to the last bin."""


class SurvivalHistogram:
    """How the survivals of proposals lie, over requests that are added one by one."""

    def __init__(self) -> None:
        self.num_requests = 0
        self._counts = [0.0] * _NUM_BINS
        self._sums = [0.0] * _NUM_BINS

    def add(self, curves: Sequence[Sequence[float]]) -> None:
        """Add a request whose blocks have survivals like one of `curves`, all as likely."""
        self.num_requests += 1
        weight = 1.0 / len(curves)
        counts, sums = self._counts, self._sums
        for curve in curves:
            for survival in curve:
                index = int(survival * _SCALE)
                counts[index] += weight
                sums[index] += weight * survival

    def rows(self) -> list[tuple[float, float]]:
        """(survival, number of proposals that have about it), the likeliest first."""
        return [
            (total / count, count)
            for count, total in zip(reversed(self._counts), reversed(self._sums), strict=True)
            if count
        ]


@dataclass(slots=True)
class Gap:
    """What passes until the drafts are there."""

    num_tokens: float
    """Committed by plain requests, which do not wait."""
    seconds: float


def gap_of(num_plain: int, draft_s: float, plain_pass_s: float) -> Gap:
    """With plain requests passes go on, as many as it takes; without, the verifier waits."""
    if num_plain == 0 or draft_s == 0.0:
        return Gap(0.0, draft_s)
    num_passes = max(1, ceil(draft_s / plain_pass_s))
    return Gap(float(num_passes * num_plain), num_passes * plain_pass_s)


def best_rate(rows: Sequence[tuple[float, float]], num_requests: int, curve: CostCurve, gap: Gap) -> float:
    """Tokens a second when the best of `rows` are verified, as many as pay.

    Args:
        rows: see `SurvivalHistogram.rows`.
        num_requests: in the pass, those that decode plainly included.
        curve: its cost.
        gap: what comes before it.
    """
    tokens, num_tokens = gap.num_tokens + num_requests, float(num_requests)
    seconds, even_until = gap.seconds + curve.seconds(num_requests), num_tokens
    best = tokens / seconds
    for survival, count in rows:
        end = num_tokens + count
        if end > even_until:  # else more tokens take no longer
            for edge, edge_s in curve.edges(ceil(num_tokens), int(end)):
                more = (edge - num_tokens) * survival
                best = max(best, (tokens + more) / (gap.seconds + edge_s))
            seconds = gap.seconds + curve.seconds(ceil(end))
            until, token_s = curve.stretch(ceil(end))
            even_until = end if token_s else until
        tokens, num_tokens = tokens + survival * count, end
        best = max(best, tokens / seconds)
    return best
