"""When a block is verified in full although nothing speaks for it: what was never tried could have got better."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True, slots=True)
class ExplorationSettings:
    """How often."""

    first_rounds: int = 2
    every_rounds: int = 64
    max_loss: float = 0.015
    """Share of the tokens that exploration may cost; where a trial costs more, it is made more rarely."""
    keep: float = 0.7
    """Weight of the trial before, when it is asked whether the last ones paid."""
    max_missed: int = 16
    """Rounds without the draft of the request on trial."""


DEFAULT_EXPLORATION = ExplorationSettings()


class Exploration:
    """One request of one pass in `every_rounds`. A trial that paid for itself is repeated at once: so a few passes, not
    hundreds, tell that acceptance is back."""

    def __init__(self, settings: ExplorationSettings = DEFAULT_EXPLORATION) -> None:
        self.uid: int | None = None
        """The request whose next block is verified in full."""
        self._settings = settings
        self._rounds_left = settings.first_rounds
        self._num_missed = 0
        self._balance = 0.0  # of the last trials, in tokens

    @property
    def is_due(self) -> bool:
        return self.uid is None and self._rounds_left <= 0

    def end_pass(self) -> None:
        self._rounds_left -= 1

    def begin(self, uid: int) -> None:
        """Try this request next."""
        self.uid = uid
        self._num_missed = 0

    def skip(self) -> None:
        """Something else was tried instead."""
        self._rounds_left = self._settings.every_rounds

    def miss(self) -> None:
        """The request's draft has not come, perhaps because its drafter has to catch up. After a while try another."""
        self._num_missed += 1
        if self._num_missed >= self._settings.max_missed:
            self.cancel()

    def cancel(self) -> None:
        """The trial cannot be made: try another soon."""
        self.uid = None

    def end(self, num_requests: int, *, cost_tokens: float, num_accepted: int = 0) -> None:
        """The trial was made, and cost so many tokens that would have come instead. `num_accepted` is what it gave, if
        drafting as such was on trial."""
        settings = self._settings
        self._balance = settings.keep * max(0.0, self._balance) + num_accepted - cost_tokens
        if self._balance > 0.0:
            self._rounds_left = 0  # with the same request, whose drafter is up to date
            return
        self.uid = None
        loss = max(0.0, cost_tokens - num_accepted)
        affordable = ceil(loss / (settings.max_loss * num_requests))
        self._rounds_left = max(settings.every_rounds, affordable)
