"""What an autoscaled application is asked in a live measurement, and what is to be seen in what it did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any


@dataclass(frozen=True, slots=True)
class Phase:
    """Requests of one kind at a constant rate."""

    name: str
    task: str
    """Of `examples/`, without the ending."""
    requests_per_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class ScalingSample:
    """What was seen at one moment."""

    at_s: float
    verifiers: int
    """That there are to be."""
    drafters: int
    serving_verifiers: int
    serving_drafters: int
    running_requests: float
    waiting_requests: float
    acceptance_length: float | None
    """Of the last seconds."""


def phases_of(step_s: float, constant_s: float) -> list[Phase]:
    """A load step and back, a switch to text of low acceptance at the same rate and back, then nothing new for long."""
    return [
        Phase("low load", "arithmetic", 0.25, step_s),
        Phase("load step", "arithmetic", 2.5, step_s),
        Phase("low load again", "arithmetic", 0.25, 2 * step_s),
        Phase("moderate load", "arithmetic", 0.5, step_s),
        Phase("low acceptance", "prose", 0.5, step_s),
        Phase("constant load", "prose", 0.5, constant_s),
    ]


def summarise_scaling(phases: Sequence[Phase], samples: Sequence[ScalingSample]) -> list[dict[str, Any]]:
    """By phase: the numbers at its ends, the first change of each kind, and how often directions turned."""
    rows = []
    starts_s = 0.0
    for phase in phases:
        within = [s for s in samples if starts_s <= s.at_s < starts_s + phase.seconds]
        row: dict[str, Any] = asdict(phase)
        if within:
            first, last = within[0], within[-1]
            row |= {
                "verifiers": [first.verifiers, max(s.verifiers for s in within), last.verifiers],
                "drafters": [first.drafters, max(s.drafters for s in within), last.drafters],
                "verifier_turns": num_turns([s.verifiers for s in within]),
                "drafter_turns": num_turns([s.drafters for s in within]),
                "most_waiting_requests": max(s.waiting_requests for s in within),
                "first_addition": _first_addition(within, starts_s),
            }
        rows.append(row)
        starts_s += phase.seconds
    return rows


def num_turns(numbers: Sequence[int]) -> int:
    """How often a number that rose falls, or one that fell rises."""
    steps = [later - earlier for earlier, later in pairwise(numbers) if later != earlier]
    return sum((one > 0) != (other > 0) for one, other in pairwise(steps))


def _first_addition(samples: Sequence[ScalingSample], starts_s: float) -> dict[str, Any] | None:
    """When verifiers were first added, and what waited then and ever before in the phase."""
    for before, after in pairwise(samples):
        if after.verifiers > before.verifiers:
            earlier = [s.waiting_requests for s in samples if s.at_s <= before.at_s]
            return {
                "after_s": round(after.at_s - starts_s, 1),
                "waiting_requests": max(earlier),
                "running_requests": before.running_requests,
            }
    return None
