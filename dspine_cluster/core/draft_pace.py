"""When a draft is late, and when a drafter that fails again and again gets a rest."""

from __future__ import annotations

from dataclasses import dataclass

_AVERAGE_WEIGHT = 0.2


@dataclass(slots=True)
class DraftPace:
    """The pace of one drafter. Times are seconds of one monotonic clock, given by the caller."""

    late_factor: float
    first_deadline_s: float
    """How long a drafter may stay silent at first without failing."""
    max_failures: int
    rest_s: float
    average_s: float | None = None
    """Moving average of the time from asking for a round's drafts to having them; None before the first came."""
    silent_since_s: float | None = None
    """When the first round passed without a draft, as long as none has ever come."""
    num_failures: int = 0
    """Failed rounds in a row."""
    rests_until_s: float = 0.0

    def deadline_s(self, plain_step_s: float) -> float:
        """How long a round waits for a draft: max(late_factor x average, one plain step).

        Before an average is known one plain step must do: a drafter that many requests move to has their context to
        take in first, and they are not to stand still meanwhile.
        """
        return max(self.late_factor * (self.average_s or 0.0), plain_step_s)

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
        if self.average_s is None:
            if self.silent_since_s is None:
                self.silent_since_s = now_s
            if now_s - self.silent_since_s < self.first_deadline_s:
                return
        self.num_failures += 1
        if self.num_failures >= self.max_failures:
            self.rests_until_s = now_s + self.rest_s
