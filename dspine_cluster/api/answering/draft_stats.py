"""How one answer was decoded, read off its rounds."""

from __future__ import annotations

from dspine_cluster.api.bodies import DspineStats
from dspine_cluster.types import RoundOutput, Usage


class DraftStats:
    """Counts rounds as their outputs come, on whichever replicas."""

    def __init__(self) -> None:
        self._usage = Usage()
        self._num_committed = 0
        """Tokens of rounds; the one that a prefill yields belongs to none."""
        self._verified_by_position: list[int] = []
        self._accepted_by_position: list[int] = []

    def push(self, output: RoundOutput) -> None:
        before, self._usage = self._usage, output.usage
        if output.usage.num_rounds == before.num_rounds:
            return
        self._num_committed += len(output.token_ids)
        _count(self._verified_by_position, output.usage.verified_tokens - before.verified_tokens)
        _count(self._accepted_by_position, output.accepted_tokens)

    def body(self) -> DspineStats:
        usage = self._usage
        num_verified, num_accepted = len(self._verified_by_position), len(self._accepted_by_position)
        return DspineStats(
            rounds=usage.num_rounds,
            drafted=usage.verified_tokens > 0,
            acceptance_length=self._num_committed / usage.num_rounds if usage.num_rounds else None,
            verify_length_mean=usage.verified_tokens / usage.num_rounds if usage.num_rounds else None,
            proposed_tokens=usage.proposed_tokens,
            verified_tokens=usage.verified_tokens,
            accepted_tokens=usage.accepted_tokens,
            verified_by_position=list(self._verified_by_position),
            accepted_by_position=self._accepted_by_position + [0] * (num_verified - num_accepted),
        )


def _count(by_position: list[int], length: int) -> None:
    """One more round whose first `length` proposals are to be counted."""
    by_position += [0] * (length - len(by_position))
    for position in range(length):
        by_position[position] += 1
