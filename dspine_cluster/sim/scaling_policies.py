"""Ways to scale a simulated fleet: the real decisions, Ray Serve's default policy, and constant numbers."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import ceil
from typing import Protocol

from dspine_cluster.core.autoscaling import AutoscalerState, decide
from dspine_cluster.core.autoscaling_config import AutoscalingConfig
from dspine_cluster.core.autoscaling_stats import Observation


@dataclass(frozen=True, slots=True)
class Numbers:
    """Replicas to have from now on."""

    verifiers: int
    drafters: int
    reason: str


class ScalingPolicy(Protocol):
    """Asked every few seconds."""

    def decide(self, observation: Observation, num_requests: int) -> Numbers:
        """`num_requests` are in the fleet, running and waiting."""
        ...


class ByAcceptance:
    """`core.autoscaling`."""

    def __init__(self, config: AutoscalingConfig) -> None:
        self._config = config
        self._state = AutoscalerState()

    def decide(self, observation: Observation, num_requests: int) -> Numbers:
        decision = decide(observation, self._state, self._config)
        self._state = decision.state
        return Numbers(decision.verifiers, decision.drafters, decision.reason)


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Parameters of Serve 2.60's default policy that matter here, with its default factors of 1."""

    target_ongoing_requests: float = 2.0
    upscale_delay_s: float = 30.0
    downscale_delay_s: float = 600.0
    look_back_period_s: float = 30.0
    min_replicas: int = 1
    max_replicas: int = 64
    drafters_per_verifier: float = 0.25
    """Drafters are kept at a ratio, rounded up: Serve knows no acceptance and no draft waits."""


@dataclass(slots=True)
class ServeDefault:
    """Ray Serve's request-count policy: wanted = running replicas x (mean ongoing requests over the look-back period /
    (target x running replicas)); a change is made once it has been wanted, in the same direction, for the delay."""

    settings: ServeSettings
    _seen: deque[tuple[float, int]] = field(default_factory=deque)
    _direction: int = 0
    _wanted_since_s: float = 0.0

    def decide(self, observation: Observation, num_requests: int) -> Numbers:
        settings, now_s = self.settings, observation.now_s
        self._seen.append((now_s, num_requests))
        while now_s - self._seen[0][0] > settings.look_back_period_s:
            self._seen.popleft()
        ongoing = sum(n for _, n in self._seen) / len(self._seen)
        current = observation.target_verifiers
        wanted = ceil(ongoing / settings.target_ongoing_requests)
        wanted = min(settings.max_replicas, max(settings.min_replicas, wanted))
        direction = (wanted > current) - (wanted < current)
        if direction != self._direction:
            self._direction, self._wanted_since_s = direction, now_s
        delay_s = settings.upscale_delay_s if direction > 0 else settings.downscale_delay_s
        if direction and now_s - self._wanted_since_s >= delay_s:
            current, self._direction = wanted, 0
        return Numbers(
            current,
            replicas_at_ratio(current, settings.drafters_per_verifier),
            f"{ongoing:.1f} ongoing requests",
        )


@dataclass(frozen=True, slots=True)
class FixedNumbers:
    """Always as many."""

    verifiers: int
    drafters_per_verifier: float

    def decide(self, observation: Observation, num_requests: int) -> Numbers:
        return Numbers(self.verifiers, replicas_at_ratio(self.verifiers, self.drafters_per_verifier), "fixed")


def replicas_at_ratio(verifiers: int, drafters_per_verifier: float) -> int:
    """Drafters for so many verifiers."""
    return ceil(verifiers * drafters_per_verifier - 1e-9)
