"""When passes compute features for drafters, which cost time that plain decoding has no use for."""

from __future__ import annotations

_LEAD_PASSES = 8
"""A drafter begins with so many tokens of a context, to which every round of its own adds several. Waiting longer costs
short requests more than better proposals give."""


class FeatureLead:
    """Passes compute features while something is drafted, and for some passes before drafting begins again: requests
    have no others then than those of their newest tokens."""

    def __init__(self, lead_passes: int = _LEAD_PASSES) -> None:
        self.is_on = True
        """Whether the next pass computes features."""
        self._lead_passes = lead_passes
        self._num_left = 0  # passes until there are enough

    def allows(self, is_wanted: bool) -> bool:
        """Whether anything may be drafted now. Asked between passes; `is_wanted` says whether anything is to be."""
        if not is_wanted:
            self._num_left = self._lead_passes
        self.is_on = is_wanted
        return is_wanted and self._num_left == 0

    def end_pass(self) -> None:
        """Requests have decoded."""
        if self.is_on:
            self._num_left = max(0, self._num_left - 1)
