"""Settings of autoscaling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

from dspine_cluster.errors import ConfigError

_STRICT: Mapping[str, Any] = {"extra": "forbid", "use_attribute_docstrings": True}
"""For whoever parses them: as all configuration, see `dspine_cluster.config`."""


@dataclass(frozen=True, slots=True)
class ReplicaLimits:
    """How many replicas one deployment may have, and how fast their number may change."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = _STRICT

    min_replicas: int = 1
    """There are never fewer."""
    max_replicas: int = 64
    """There are never more."""
    max_step_up: int = 8
    """Replicas added at once; more where half of the present number is more."""
    max_step_down: int = 2
    """Replicas taken away at once."""
    up_cooldown_s: float = 5.0
    """Between an increase and the next."""
    down_cooldown_s: float = 15.0
    """Between any change and a decrease."""
    down_hold_s: float = 60.0
    """A decrease goes to the largest number that was needed in this time; after decreases that did not last, to that of
    up to 16 times as long, for as many replicas as came back."""

    def __post_init__(self) -> None:
        if not 0 <= self.min_replicas <= self.max_replicas or self.max_replicas < 1:
            raise ConfigError("0 <= min_replicas <= max_replicas and 1 <= max_replicas must hold")
        if self.max_step_up < 1 or self.max_step_down < 1:
            raise ConfigError("max_step_up and max_step_down must be at least 1")
        if not all(
            0 <= time_s < inf for time_s in (self.up_cooldown_s, self.down_cooldown_s, self.down_hold_s)
        ):
            raise ConfigError(
                "up_cooldown_s, down_cooldown_s and down_hold_s must be finite and not negative"
            )


@dataclass(frozen=True, slots=True)
class AutoscalingConfig:
    """What `decide` goes by."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = _STRICT

    verifiers: ReplicaLimits = ReplicaLimits()
    drafters: ReplicaLimits = ReplicaLimits(min_replicas=0)
    inter_token_s: float = 0.02
    """The objective: seconds between two tokens of a request, on average over its answer."""
    verifier_utilisation: float = 0.8
    """Part of the sustainable tokens a second that is planned with: the rest is for what comes in bursts."""
    drafter_busy_ratio: float = 0.6
    """Part of their time that drafters are planned to be busy."""
    max_draft_wait_ratio: float = 0.15
    """Part of a round that may pass in the drafters' queues before one drafter is added."""
    hysteresis: float = 0.08
    """Part of a replica that demand has to be above what the present number bears, and below what fewer bear."""
    drafters_per_verifier: float = 0.25
    """Before any draft has been measured."""
    smoothing_s: float = 12.0
    """Time constant of the demand's moving average."""
    trend_s: float = 45.0
    """Time constant of the demand's trend."""
    lead_s: float = 30.0
    """How far ahead demand is planned for: a replica's start-up time."""
    drain_backlog_s: float = 15.0
    """In what time prompts that wait are to be prefilled beside what comes."""
    stale_s: float = 5.0
    """A replica's figures that are older do not count."""
    min_fresh_ratio: float = 0.5
    """With fewer replicas whose figures count, all numbers stay."""
    min_speculation_gain: float = 1.05
    """Tokens a second with drafts over those without, below which there are no drafters."""
    probe_after_s: float = 300.0
    """How long after drafters were turned off one is tried again; twice as long after each time in vain, up to 16."""
    probe_s: float = 60.0
    """How long it is tried."""
    zero_after_s: float | None = None
    """Idle time after which there are no replicas at all; None keeps at least one verifier, as served applications do:
    nothing would wake them."""

    def __post_init__(self) -> None:
        ratios = (self.verifier_utilisation, self.drafter_busy_ratio, self.min_fresh_ratio)
        if not all(0 < ratio <= 1 for ratio in ratios):
            raise ConfigError(
                "verifier_utilisation, drafter_busy_ratio and min_fresh_ratio must be in (0, 1]"
            )
        times_s = (self.inter_token_s, self.smoothing_s, self.trend_s, self.drain_backlog_s, self.stale_s)
        if not all(0 < time_s < inf for time_s in times_s):
            raise ConfigError(
                "inter_token_s, smoothing_s, trend_s, drain_backlog_s and stale_s must be positive and finite"
            )
        others = (
            self.lead_s,
            self.hysteresis,
            self.min_speculation_gain,
            self.max_draft_wait_ratio,
            self.drafters_per_verifier,
            self.probe_s,
            self.probe_after_s,
            self.zero_after_s or 0.0,
        )
        if not all(0 <= value < inf for value in others):
            raise ConfigError(
                "lead_s, hysteresis, min_speculation_gain, max_draft_wait_ratio, drafters_per_verifier, probe_s, "
                "probe_after_s and zero_after_s must be finite and not negative"
            )
        if self.zero_after_s is None and self.verifiers.min_replicas == 0:
            raise ConfigError(
                "verifiers.min_replicas 0 needs zero_after_s, the idle time before the last one stops"
            )
