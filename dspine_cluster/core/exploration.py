"""When a block is verified in full although nothing speaks for it: what was never tried could have got better."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True, slots=True)
class ExplorationSettings:
    """How often."""

    first_rounds: int = 2
    every_rounds: int = 64
    max_loss: float = 0.01
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

    @property
    def is_on(self) -> bool:
        """Whether a request is on trial, or is to be."""
        return self.uid is not None or self.is_due

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


class PlainTrials:
    """Passes without drafts where drafts are made: one in place of every other exploration where plain decoding would
    be nearly as fast, and a few in a row where it may be faster but too little is known of it."""

    num_passes = 4
    every_passes = 16

    def __init__(self) -> None:
        self.num_trials = 0
        self._num_left = 0
        self._num_drafted = 0  # since the last few
        self._was_plain = False  # whether the last exploration was a plain pass

    def is_next(self, exploration: Exploration, *, is_plain_close: bool, may_plain_be_faster: bool) -> bool:
        """Whether the next pass is plain for the sake of trial. Asked after every pass."""
        self._num_left = max(0, self._num_left - 1)
        self._num_drafted = 0 if self._num_left else self._num_drafted + 1
        if self._num_drafted > self.every_passes and may_plain_be_faster and exploration.uid is None:
            self._num_left = self.num_passes
            self.num_trials += 1
        if self._num_left or not exploration.is_due:
            return self._num_left > 0
        self._was_plain = not self._was_plain and is_plain_close
        if self._was_plain:
            exploration.skip()
            self.num_trials += 1
        return self._was_plain
