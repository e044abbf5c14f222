"""How long requests run on, by those that have ended."""

from __future__ import annotations

from math import inf

_FADE = 1.0 - 1.0 / 64.0
"""Of what is known, with every request that ends."""


class RequestLengths:
    """Lengths in passes, of which the last ones count most."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._sum_of_squares = 0.0

    def note(self, num_passes: int) -> None:
        """A request has ended after so many."""
        self._sum = self._sum * _FADE + num_passes
        self._sum_of_squares = self._sum_of_squares * _FADE + num_passes * num_passes

    @property
    def passes_left(self) -> float:
        """Passes to expect of any request that runs, more than half of a mean one, since long ones are met more often:
        E[length^2] / 2 E[length] (the residual life of a renewal process). Infinite before any has ended."""
        return self._sum_of_squares / (2.0 * self._sum) if self._sum else inf
