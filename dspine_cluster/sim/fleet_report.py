"""What comes of serving a scenario with a fleet."""

from __future__ import annotations

from dataclasses import dataclass, field

from dspine_cluster.sim.replica import Work


@dataclass(frozen=True, slots=True)
class ScaleEvent:
    """A decision that changed something."""

    at_s: float
    verifiers: int
    drafters: int
    reason: str


@dataclass(slots=True)
class FleetReport:
    """What came of a run."""

    done: list[Work] = field(default_factory=list)
    ended_s: list[float] = field(default_factory=list)
    """When each of `done` had its last token."""
    gpu_s: float = 0.0
    scale_events: list[ScaleEvent] = field(default_factory=list)
    counts: list[tuple[float, int, int, float]] = field(default_factory=list)
    """(time, verifiers that serve, drafters that serve, requests) at each decision."""
