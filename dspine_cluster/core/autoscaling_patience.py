"""How long a number of replicas waits before it falls, by how long earlier decreases lasted.

What is needed is measured, and the measure varies. Near the border between two numbers its low values last longer than
any fixed wait, sooner or later; then replicas are stopped and started again without end. So a decrease that has to be
taken back soon makes later ones wait for three times as long as would have been enough.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

_SOON_HOLDS = 8.0
"""Replicas that are away for longer were worth taking away."""
_LONGER = 3.0
_MAX_HOLDS = 16.0
_MIN_SHARE = 0.1
"""Of the larger number: among many replicas one more or less is no swing."""


@dataclass(frozen=True, slots=True)
class Patience:
    """What one deployment's decreases have taught."""

    hold_s: float = 0.0
    """A decrease goes to the largest number that was needed in this time, where that is longer than configured."""
    spare: int = 0
    """But only as many replicas are kept for that as came back last: a larger fall is a real one."""
    lowered_at_s: float | None = None
    """The last decrease, if there was no increase since."""
    lowered_from: int = 0
    """The number before it, and before those soon before it."""

    def lowered(self, current: int, now_s: float, down_hold_s: float) -> Patience:
        """The number falls from `current`."""
        if self.lowered_at_s is None:
            return replace(self, lowered_at_s=now_s, lowered_from=current)
        if now_s - self.lowered_at_s <= _SOON_HOLDS * down_hold_s:
            return replace(self, lowered_at_s=now_s)
        return replace(self._faded(down_hold_s), lowered_at_s=now_s, lowered_from=current)

    def raised(self, current: int, up: int, now_s: float, down_hold_s: float) -> Patience:
        """The number rises from `current` towards `up`."""
        if self.lowered_at_s is None:
            return self
        lasted_s = now_s - self.lowered_at_s
        risen = replace(self, lowered_at_s=None)
        if lasted_s > _SOON_HOLDS * down_hold_s:
            return risen._faded(down_hold_s)
        back = min(up, self.lowered_from)
        if current == 0 or back - current < _MIN_SHARE * back:
            return risen
        hold_s = _LONGER * (max(down_hold_s, self.hold_s) + lasted_s)
        return Patience(min(_MAX_HOLDS * down_hold_s, hold_s), back - current)

    def _faded(self, down_hold_s: float) -> Patience:
        """A decrease has lasted."""
        if self.hold_s <= 2 * down_hold_s:
            return replace(self, hold_s=0.0, spare=0)
        return replace(self, hold_s=self.hold_s / 2)
