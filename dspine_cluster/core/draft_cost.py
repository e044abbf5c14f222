"""What a batch of drafts takes, learnt from those that came."""

from __future__ import annotations

from dspine_cluster.core.online_fit import OnlineFit

_FEW_BLOCKS = 8


class DraftCost:
    """The time from asking for a batch of drafts to having them, linear in their number. 0 before any has come."""

    def __init__(self) -> None:
        self._fit: OnlineFit | None = None

    @property
    def is_known(self) -> bool:
        """Whether drafts have been noted yet."""
        return self._fit is not None

    def note(self, num_blocks: int, taken_s: float) -> None:
        if self._fit is None:
            self._fit = OnlineFit([taken_s, taken_s])
        self._fit.note([1.0, num_blocks / _FEW_BLOCKS], taken_s)

    def seconds(self, num_blocks: int) -> float:
        if self._fit is None or num_blocks == 0:
            return 0.0
        return max(0.0, self._fit.predict([1.0, num_blocks / _FEW_BLOCKS]))
