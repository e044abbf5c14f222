"""Verifiers that Serve shows no more because they finish what they have: what they would tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dspine_cluster.core.autoscaling_stats import VerifierStats

_LONGEST_S = 60.0


class Leaving:
    """Without them what they still have to generate would be gone at once, and with it demand."""

    def __init__(self) -> None:
        self._present: dict[str, VerifierStats] = {}
        self._gone: dict[str, tuple[VerifierStats, float]] = {}
        """What was told last, and when it was missed first."""

    def update(self, present: Sequence[VerifierStats], now_s: float) -> list[VerifierStats]:
        """Those that have left and are not done: they go on at their last pace, with nothing new."""
        names = {stats.replica_id for stats in present}
        for name in self._present.keys() - names:
            self._gone[name] = self._present[name], now_s
        self._present = {stats.replica_id: stats for stats in present}
        for name in names & self._gone.keys():
            del self._gone[name]
        draining = {name: _drained(stats, now_s - gone_s) for name, (stats, gone_s) in self._gone.items()}
        for name, stats in draining.items():
            if stats.running_tokens <= 0.0 or now_s - self._gone[name][1] > _LONGEST_S:
                del self._gone[name]
        return [draining[name] for name in self._gone]


def _drained(stats: VerifierStats, seconds: float) -> VerifierStats:
    """`seconds` after it was asked for the last time."""
    left = stats.running_tokens + stats.waiting_tokens - stats.committed_tokens_per_s * seconds
    return replace(stats, age_s=0.0, running_tokens=max(0.0, left), waiting_tokens=0.0, is_draining=True)
