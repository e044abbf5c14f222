"""When passes compute features for drafters, which cost time that plain decoding has no use for."""

from __future__ import annotations

_LEAD_PASSES = 8
"""A drafter begins with so many tokens of a context, to which every round of its own adds several. Waiting longer costs
short requests more than better proposals give."""
_LINGER_PASSES = 16
"""A decision against drafting that holds for longer is not about to be taken back."""


class FeatureLead:
    """Passes compute features while something is drafted, or new requests would be, and for some time after as long as
    that may come back. Then they stop, until some passes before something is drafted again: requests have no others
    then than those of their newest tokens."""

    def __init__(self, lead_passes: int = _LEAD_PASSES, linger_passes: int = _LINGER_PASSES) -> None:
        self.is_on = True
        """Whether the next pass computes features."""
        self._lead_passes = lead_passes
        self._linger_passes = linger_passes
        self._num_left = 0  # passes until there are enough
        self._is_for_trial = False  # whether features are computed for a trial and nothing else
        self._num_for_trial = 0  # passes
        self._num_plain = linger_passes  # passes since requests were drafted for, except on trial

    def allows(
        self, *, drafting: bool, on_trial: bool, drafts_newcomers: bool = False, is_near: bool = True
    ) -> bool:
        """Whether anything may be drafted now. Asked after every pass.

        Args:
            drafting: whether requests are to be drafted for.
            on_trial: whether one is, to see what comes of it.
            drafts_newcomers: whether new requests will be.
            is_near: whether drafting would be nearly as fast as what is done.
        """
        self._num_plain = 0 if drafting else self._num_plain + 1
        lingers = self._num_plain <= self._linger_passes and (drafting or is_near)
        self.is_on = on_trial or drafts_newcomers or lingers
        self._is_for_trial = on_trial and not drafts_newcomers and not lingers
        if not self.is_on:
            self._num_left = self._lead_passes
        return (drafting or on_trial) and self._num_left == 0

    def note_prompts(self, *, drafts_newcomers: bool) -> None:
        """Nobody decodes, but prompts may be computed. Their features are more than passes of a request would give."""
        if drafts_newcomers:
            self.is_on, self._num_left = True, 0

    def end_pass(self) -> None:
        """Requests have decoded."""
        if self.is_on:
            self._num_left = max(0, self._num_left - 1)
        self._num_for_trial += self._is_for_trial

    def take_num_for_trial(self) -> int:
        """Passes since this was last asked that computed features for a trial and nothing else."""
        num_passes, self._num_for_trial = self._num_for_trial, 0
        return num_passes
