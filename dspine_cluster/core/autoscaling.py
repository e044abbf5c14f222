"""How many verifiers and drafters there should be.

Verifiers follow demand over what one sustains at the present acceptance length, so that a workload that drifts to
lower acceptance gets more of them before anything queues. Drafters follow their own busy time and how long drafts are
waited for, and go away where drafting does not pay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import TypeVar

from dspine_cluster.core.autoscaling_capacity import Capacity, sustainable
from dspine_cluster.core.autoscaling_config import AutoscalingConfig
from dspine_cluster.core.autoscaling_damping import Damping, Step, Why, step
from dspine_cluster.core.autoscaling_demand import Demand, update_demand
from dspine_cluster.core.autoscaling_drafters import Speculation, needed_drafters, update_speculation
from dspine_cluster.core.autoscaling_stats import DrafterStats, Observation, VerifierStats

Stats = TypeVar("Stats", VerifierStats, DrafterStats)


@dataclass(frozen=True, slots=True)
class AutoscalerState:
    """What one decision leaves for the next."""

    demand: Demand = field(default_factory=Demand)
    verifiers: Damping = field(default_factory=Damping)
    drafters: Damping = field(default_factory=Damping)
    speculation: Speculation = field(default_factory=Speculation)
    tokens_per_s: float = 0.0
    """What one verifier bore when that was last known."""
    busy_at_s: float | None = None
    """When there was work last."""


@dataclass(frozen=True, slots=True)
class Decision:
    """How many replicas there should be from now on. Whoever carries it out lets replicas drain before they stop."""

    verifiers: int
    drafters: int
    reason: str
    state: AutoscalerState
    verifiers_why: Why
    drafters_why: Why


def decide(observation: Observation, state: AutoscalerState, config: AutoscalingConfig) -> Decision:
    """The numbers that the present figures call for, close enough to the present ones.

    Figures older than `stale_s` do not count; where too few are left, nothing changes.
    """
    now_s = observation.now_s
    if not observation.verifiers and observation.target_verifiers:
        return _hold(observation, state, "no verifier has told its figures")
    serving = _fresh(observation.verifiers, config, serving_only=True)
    num_serving = sum(not v.is_draining for v in observation.verifiers)
    if num_serving and len(serving) < config.min_fresh_ratio * num_serving:
        known = f"{len(serving)} of {num_serving} verifiers have told their figures in {config.stale_s:g} s"
        return _hold(observation, state, known)
    coverage = len(serving) / num_serving if num_serving else 1.0
    counted = _fresh(observation.verifiers, config)
    demand = update_demand(state.demand, counted, coverage, now_s, config)
    bears = [sustainable(v, demand.prefill_ratio, config.inter_token_s) for v in serving]
    tokens_per_s = sum(b.tokens_per_s for b in bears) / len(bears) if bears else state.tokens_per_s
    has_work = observation.unplaced_requests > 0 or any(
        v.running_requests or v.waiting_tokens or v.queued_prefill_tokens for v in counted
    )
    busy_at_s = now_s if has_work or state.busy_at_s is None else state.busy_at_s
    is_idle = config.zero_after_s is not None and now_s - busy_at_s >= config.zero_after_s

    asked = demand.ahead(config.lead_s)
    backlog = _backlog(counted, coverage, config)
    bearable = config.verifier_utilisation * tokens_per_s
    needed = asked / bearable + backlog if bearable else float(observation.target_verifiers)
    needed = max(needed, _crowd(serving, bears, coverage))
    verifiers = step(
        0.0 if is_idle else needed,
        observation.target_verifiers,
        now_s,
        state.verifiers,
        config.verifiers,
        hysteresis=0.0 if is_idle else config.hysteresis,
        may_fall=not any(v.is_draining for v in observation.verifiers),
        floor=0 if is_idle else 1,
    )

    speculation = update_speculation(state.speculation, serving, now_s, config)
    wanted = needed_drafters(
        speculation,
        serving,
        _fresh(observation.drafters, config, serving_only=True),
        num_drafters=sum(not d.is_draining for d in observation.drafters),
        num_verifiers=verifiers.replicas,
        num_serving=num_serving,
        config=config,
    )
    drafters = step(
        wanted.replicas,
        observation.target_drafters,
        now_s,
        state.drafters,
        config.drafters,
        hysteresis=0.0 if wanted.replicas == 0 else config.hysteresis,
        may_fall=not any(d.is_draining for d in observation.drafters),
    )
    reason = "; ".join(
        [
            _verifier_reason(
                observation, serving, bears, asked, demand, backlog, needed, verifiers.replicas, is_idle
            )
            + _limited(verifiers),
            f"drafters {observation.target_drafters} -> {drafters.replicas}: {wanted.reason}"
            + _limited(drafters),
        ]
    )
    after = AutoscalerState(demand, verifiers.damping, drafters.damping, speculation, tokens_per_s, busy_at_s)
    why = Why.IDLE if is_idle and verifiers.why is Why.NEEDED else verifiers.why
    return Decision(verifiers.replicas, drafters.replicas, reason, after, why, drafters.why)


def decide_drafters(observation: Observation, state: AutoscalerState, config: AutoscalingConfig) -> Decision:
    """The number of drafters by their own busy time alone, where nothing is known of verifiers."""
    drafters = _fresh(observation.drafters, config, serving_only=True)
    target, now_s = observation.target_drafters, observation.now_s
    if len(drafters) < config.min_fresh_ratio * len(observation.drafters) or not drafters:
        return _hold(observation, state, f"drafters {target}: too few have told their figures")
    busy = sum(drafter.busy_ratio for drafter in drafters) / len(drafters)
    needed = max(1e-3, busy * len(observation.drafters) / config.drafter_busy_ratio)
    taken = step(needed, target, now_s, state.drafters, config.drafters, hysteresis=config.hysteresis)
    reason = f"drafters {target} -> {taken.replicas}: busy {busy:.2f} of their time" + _limited(taken)
    after = replace(state, drafters=taken.damping)
    return Decision(observation.target_verifiers, taken.replicas, reason, after, Why.STALE, taken.why)


def _hold(observation: Observation, state: AutoscalerState, known: str) -> Decision:
    """All numbers stay: too little is known."""
    return Decision(
        observation.target_verifiers,
        observation.target_drafters,
        f"{known}: hold",
        state,
        Why.STALE,
        Why.STALE,
    )


def _fresh(
    replicas: Sequence[Stats], config: AutoscalingConfig, *, serving_only: bool = False
) -> list[Stats]:
    return [r for r in replicas if r.age_s <= config.stale_s and not (serving_only and r.is_draining)]


def _limited(step: Step) -> str:
    return "" if step.why is Why.NEEDED else f" ({step.why})"


def _backlog(verifiers: Sequence[VerifierStats], coverage: float, config: AutoscalingConfig) -> float:
    """Verifiers that would prefill what is queued within `drain_backlog_s`, beyond what is queued at any time."""
    queued_s = sum(max(0.0, v.queued_prefill_tokens * v.prefill_token_s - 1.0) for v in verifiers)
    return queued_s / coverage / config.drain_backlog_s


def _crowd(serving: Sequence[VerifierStats], bears: Sequence[Capacity], coverage: float) -> float:
    """Verifiers over which the requests that run would be few enough for each: where they are too many already, they
    get tokens, and ask for the next answer, later than they would, which makes demand look less than it is."""
    room = sum(bear.num_requests for bear in bears)
    return sum(v.running_requests for v in serving) / coverage * len(serving) / room if room else 0.0


def _verifier_reason(
    observation: Observation,
    serving: Sequence[VerifierStats],
    bears: Sequence[Capacity],
    asked: float,
    demand: Demand,
    backlog: float,
    needed: float,
    replicas: int,
    is_idle: bool,
) -> str:
    head = f"verifiers {observation.target_verifiers} -> {replicas}: "
    if is_idle:
        return head + "idle"
    if not bears:
        return head + f"{asked:.0f} tokens/s asked, none serves yet"
    count = len(bears)
    length = sum(v.acceptance_length for v in serving) / count
    text = (
        f"{asked:.0f} tokens/s ahead ({demand.level:.0f} now, trend {demand.trend:+.1f}/s), one bears "
        f"{sum(b.tokens_per_s for b in bears) / count:.0f} at acceptance length {length:.2f} in rounds of "
        f"{1000 * sum(b.round_s for b in bears) / count:.0f} ms with {sum(b.num_requests for b in bears) / count:.0f} "
        f"requests"
    )
    if backlog > 0.05:
        text += f", {backlog:.1f} for queued prompts"
    return head + text + (f": {needed:.2f} needed" if needed < inf else "")
