"""How many tokens a second a verifier sustains at the present acceptance length."""

from __future__ import annotations

from dataclasses import dataclass

from dspine_cluster.core.autoscaling_stats import VerifierStats

_MIN_PAGE_USAGE = 0.05
_SCALES = (0.5, 8.0)


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a verifier bears under the objective."""

    num_requests: float
    """The largest batch whose rounds are short enough, and that fits."""
    round_s: float
    tokens_per_s: float


def slowness(verifier: VerifierStats) -> float:
    """Measured over expected time of a round, without prefill and without the drafters' queues: a slow node, or a
    curve that is out of date."""
    if verifier.round_s <= 0 or verifier.running_requests < 1:
        return 1.0
    own_s = verifier.round_s - verifier.prefill_s - verifier.draft_queue_s
    low, high = _SCALES
    return min(high, max(low, own_s / verifier.curve.at(verifier.running_requests)))


def sustainable(verifier: VerifierStats, prefill_ratio: float, inter_token_s: float) -> Capacity:
    """The largest batch n that meets the objective, and what it commits: n x acceptance length / round(n).

    A round of n commits n A tokens and computes `prefill_ratio` prompt tokens for each of them, which is how requests
    come. The objective bounds round(n) / A. Memory bounds n by what the present requests take of the pages. An
    objective that not even one request meets is taken for what one request needs.
    """
    length, scale = verifier.acceptance_length, slowness(verifier)
    fits = float(verifier.max_requests)
    if verifier.page_usage_ratio > _MIN_PAGE_USAGE and verifier.running_requests >= 1:
        fits = min(fits, max(1.0, verifier.running_requests / verifier.page_usage_ratio))
    prefill_s = length * prefill_ratio * verifier.prefill_token_s

    def round_s(num_requests: float) -> float:
        return scale * (verifier.curve.at(num_requests) + num_requests * prefill_s)

    limit_s = inter_token_s * length
    low, high = 1.0, fits
    if round_s(fits) <= limit_s:
        low = fits
    elif round_s(1.0) < limit_s:
        while high - low > 0.05:
            middle = (low + high) / 2
            low, high = (middle, high) if round_s(middle) <= limit_s else (low, middle)
    return Capacity(low, round_s(low), low * length / round_s(low))
