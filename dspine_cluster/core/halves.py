"""Whether two halves of the requests take turns: the round of one runs while the drafts of the other are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Seconds = Callable[[int], float]
"""The time of a pass, or of a batch of drafts, for that many requests."""


@dataclass(frozen=True, slots=True)
class HalvesSettings:
    """How readily the decision changes."""

    begin_ratio: float = 0.95
    """Two halves must take less than this share of what one round of all requests takes, since they pay twice for the
    pass over the weights and the shares are estimates."""
    end_ratio: float = 1.0
    min_rounds: int = 16
    """Passes between two decisions."""


DEFAULT_HALVES = HalvesSettings()


class Halves:
    """Keeps an arrangement until the other is clearly better."""

    def __init__(self, settings: HalvesSettings = DEFAULT_HALVES) -> None:
        self.is_on = False
        self._settings = settings
        self._rounds_left = 0

    def end_pass(self) -> None:
        self._rounds_left -= 1

    def decide(self, num_requests: int, pass_s: Seconds, draft_s: Seconds) -> None:
        """Look at what both take for `num_requests`, if it is time to."""
        if num_requests < 2:
            self.is_on = False
        elif self._rounds_left <= 0:
            self._rounds_left = self._settings.min_rounds
            limit = self._settings.end_ratio if self.is_on else self._settings.begin_ratio
            one_round_s = pass_s(num_requests) + draft_s(num_requests)
            self.is_on = halves_s(num_requests, pass_s, draft_s) < limit * one_round_s

    def added_s(self, num_requests: int, pass_s: Seconds, draft_s: Seconds) -> float:
        """What drafts for that many requests add to their passes."""
        drafts_s = draft_s(num_requests)
        if not self.is_on or num_requests < 2:
            return drafts_s
        return max(0.0, min(drafts_s, halves_s(num_requests, pass_s, draft_s) - pass_s(num_requests)))


def halves_s(num_requests: int, pass_s: Seconds, draft_s: Seconds) -> float:
    """The time in which both halves have a round: the verifier has two passes to run, and each half its drafts to wait
    for after its own."""
    half = (num_requests + 1) // 2
    return max(2.0 * pass_s(half), pass_s(half) + draft_s(half))
