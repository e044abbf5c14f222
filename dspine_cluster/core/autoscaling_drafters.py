"""Whether drafting pays at all, and how many drafters it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from dspine_cluster.core.autoscaling_config import AutoscalingConfig
from dspine_cluster.core.autoscaling_stats import DrafterStats, VerifierStats

_MAX_PROBE_FACTOR = 16


@dataclass(frozen=True, slots=True)
class Speculation:
    """Whether there are drafters, and since when."""

    is_on: bool = True
    is_probe: bool = False
    """One drafter is being tried, after a time without."""
    since_s: float = 0.0
    poor_since_s: float | None = None
    """Since when drafting has not paid."""
    probe_factor: int = 1
    """The next probe comes after this many times `probe_after_s`."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What drafting needs, and why."""

    replicas: float
    reason: str


def speculation_gain(verifiers: Sequence[VerifierStats]) -> float:
    """Tokens a second with drafts over those without, over the verifiers that decode and know it: infinite where none
    of them does, and 1 where none decodes."""
    busy = [v for v in verifiers if v.running_requests >= 1]
    known = [v for v in busy if v.speculation_gain < inf]
    if not known:
        return inf if busy else 1.0
    return sum(v.speculation_gain * v.running_requests for v in known) / sum(
        v.running_requests for v in known
    )


def update_speculation(
    speculation: Speculation, verifiers: Sequence[VerifierStats], now_s: float, config: AutoscalingConfig
) -> Speculation:
    """Turn drafting off once it has not paid for `probe_s`; try it again from time to time."""
    if not speculation.is_on:
        is_due = now_s - speculation.since_s >= config.probe_after_s * speculation.probe_factor
        return replace(speculation, is_on=True, is_probe=True, since_s=now_s) if is_due else speculation
    is_poor = any(v.running_requests >= 1 for v in verifiers) and (
        speculation_gain(verifiers) < config.min_speculation_gain
    )
    if is_poor:
        poor_since_s = now_s if speculation.poor_since_s is None else speculation.poor_since_s
        if now_s - poor_since_s < config.probe_s:
            return replace(speculation, poor_since_s=poor_since_s)
        factor = min(_MAX_PROBE_FACTOR, speculation.probe_factor * 2) if speculation.is_probe else 1
        return Speculation(is_on=False, since_s=now_s, probe_factor=factor)
    if speculation.is_probe and now_s - speculation.since_s >= config.probe_s:
        return Speculation(since_s=now_s)
    return replace(speculation, poor_since_s=None)


def needed_drafters(
    speculation: Speculation,
    verifiers: Sequence[VerifierStats],
    drafters: Sequence[DrafterStats],
    *,
    num_drafters: int,
    num_verifiers: int,
    num_serving: int,
    config: AutoscalingConfig,
) -> Wanted:
    """Drafters that are busy `drafter_busy_ratio` of their time, for as many verifiers as there will be, and one more
    where drafts are waited for too long."""
    if num_verifiers == 0:
        return Wanted(0.0, "no verifiers")
    if not speculation.is_on:
        return Wanted(
            0.0, f"drafting gives {speculation_gain(verifiers):.2f} times the tokens of plain decoding"
        )
    if speculation.is_probe:
        return Wanted(1.0, "tried again")
    if num_drafters and not drafters:
        return Wanted(float(num_drafters), "their figures are old")
    if not drafters or not num_serving:
        return Wanted(num_verifiers * config.drafters_per_verifier, "nothing measured yet")
    busy = sum(d.busy_ratio for d in drafters) * num_drafters / len(drafters)
    grown = max(1.0, num_verifiers / num_serving)
    needed = busy * grown / config.drafter_busy_ratio
    rounds_s = sum(v.round_s for v in verifiers)
    waited = sum(v.draft_queue_s for v in verifiers) / rounds_s if rounds_s else 0.0
    reason = f"busy {busy / num_drafters:.2f} of their time, {100 * waited:.0f} % of rounds waited for them"
    if waited > config.max_draft_wait_ratio:
        needed = max(needed, num_drafters + 1.0)
        reason += ", one more"
    return Wanted(max(needed, 1e-3), reason)
