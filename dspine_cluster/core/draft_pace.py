"""When a draft is late, and when a drafter that fails again and again gets a rest."""

from __future__ import annotations

from dataclasses import dataclass

_AVERAGE_WEIGHT = 0.2


@dataclass(slots=True)
class DraftPace:
    """The pace of one drafter. Times are seconds of one monotonic clock, given by the caller."""

    late_factor: float
    first_deadline_s: float
    max_failures: int
    rest_s: float
    average_s: float | None = None
    """Moving average of the time from asking for a round's drafts to having them."""
    num_failures: int = 0
    """Failed rounds in a row."""
    rests_until_s: float = 0.0

    def deadline_s(self, plain_step_s: float) -> float:
        """How long a draft may take: max(late_factor x average, one plain step)."""
        if self.average_s is None:
            return self.first_deadline_s
        return max(self.late_factor * self.average_s, plain_step_s)

    def is_resting(self, now_s: float) -> bool:
        return now_s < self.rests_until_s

    def note_draft(self, taken_s: float, *, late: bool) -> None:
        """A draft came after `taken_s`. Late ones enter the average too: a deadline that is too short must grow."""
        if self.average_s is None:
            self.average_s = taken_s
        else:
            self.average_s += _AVERAGE_WEIGHT * (taken_s - self.average_s)
        if not late:
            self.num_failures = 0

    def note_failure(self, now_s: float) -> None:
        """A round passed without a draft that had been asked for. After `max_failures` in a row the drafter rests;
        the first failure after a rest brings the next one."""
        self.num_failures += 1
        if self.num_failures >= self.max_failures:
            self.rests_until_s = now_s + self.rest_s
