"""What a verifier tells of its rounds, now and then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from math import inf

from dspine_cluster.core.cluster_records import VerifierNews
from dspine_cluster.core.verifier_figures import VerifierFigures
from dspine_cluster.observability.metrics import VerifierMetrics

_PERIOD_S = 1.0
"""Every reader of the directory gets each piece of news, and people do not look more often."""


class NewsReport:
    """Called by one thread, which need not be the loop's."""

    def __init__(self) -> None:
        self._told = VerifierNews()
        self._told_at_s = -inf

    def take(
        self,
        metrics: VerifierMetrics,
        attached: tuple[tuple[str, int], ...],
        now_s: float,
        stats: Callable[[], Mapping[str, float]] = dict,
    ) -> VerifierNews | None:
        """The news, unless there are none or some were taken within the last second."""
        if now_s - self._told_at_s < _PERIOD_S:
            return None
        news = VerifierNews(
            _figures(metrics), round(metrics.page_usage_ratio, 2), attached, tuple(stats().items())
        )
        if news == self._told:
            return None
        self._told, self._told_at_s = news, now_s
        return news


def _figures(metrics: VerifierMetrics) -> VerifierFigures:
    return VerifierFigures(
        rounds=metrics.rounds_total,
        drafted_rounds=metrics.drafted_rounds_total,
        committed_tokens=metrics.committed_tokens_total,
        prompt_tokens=metrics.prompt_tokens_total,
        cached_prompt_tokens=metrics.cached_prompt_tokens_total,
        verified_per_position=_listed(metrics.verified_tokens_per_position_total, 1),
        accepted_per_position=_listed(metrics.accepted_tokens_per_position_total, 1),
        rounds_per_verify_length=_listed(metrics.verify_length_total, 0),
    )


def _listed(counts: Counter[int], first: int) -> tuple[int, ...]:
    """The counts of `first`, `first + 1`, ... up to the last that is there."""
    counted = dict(counts)  # copied in one go: the loop's thread may count something new meanwhile
    return tuple(counted.get(index, 0) for index in range(first, max(counted, default=first - 1) + 1))
