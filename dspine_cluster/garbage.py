"""How often a process that runs rounds looks for garbage."""

from __future__ import annotations

import gc

_YOUNG_OBJECTS = 50_000
"""More than the rounds of a few hundred requests hold at once."""


def collect_rarely() -> None:
    """Let objects gather before the collector goes through them, and leave alone those that are there already.

    What a round makes is freed when the next one takes its place, all but nothing of it in cycles. By default the
    collector would go through it once or more in every round.
    """
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])
