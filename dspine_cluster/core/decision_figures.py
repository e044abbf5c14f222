"""What dynamic verification decided and why, and how well it predicted times."""

from __future__ import annotations

from dataclasses import dataclass, field

from dspine_cluster.core.verify_walk import Stop


@dataclass(slots=True)
class DecisionFigures:
    """Sums over passes. Any thread may ask for the totals."""

    stops: dict[Stop, int] = field(default_factory=lambda: dict.fromkeys(Stop, 0))
    """Passes by why no more was verified."""
    num_drafted: int = 0
    """Requests that were drafted for when their round had ended."""
    num_plain: int = 0
    """The others."""
    num_full_trials: int = 0
    pass_s: float = 0.0
    """What those passes took whose time was predicted."""
    predicted_pass_s: float = 0.0
    draft_s: float = 0.0
    predicted_draft_s: float = 0.0

    @property
    def totals(self) -> dict[str, float]:
        """Counters by name."""
        return {f"verify_stops_total{{reason={stop}}}": count for stop, count in self.stops.items()} | {
            "draft_decisions_total{decision=draft}": self.num_drafted,
            "draft_decisions_total{decision=plain}": self.num_plain,
            "trials_total{kind=full}": self.num_full_trials,
            "judged_pass_seconds_total": self.pass_s,
            "predicted_pass_seconds_total": self.predicted_pass_s,
            "judged_draft_seconds_total": self.draft_s,
            "predicted_draft_seconds_total": self.predicted_draft_s,
        }
