"""Who drafts where: the directory's picture of the drafters, from what each last said of itself.

The picture is advisory. It may be stale, and nothing depends on it for correctness.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DrafterRecord:
    """What a drafter replica tells of itself."""

    replica_id: str
    node_id: str
    local_endpoints: tuple[str, ...]
    """Reachable on the same node only."""
    remote_endpoints: tuple[str, ...]
    """Reachable from every node."""
    epoch: str
    """Differs after every restart of the replica."""


@dataclass(frozen=True, slots=True)
class DrafterChoice:
    """The drafters that a verifier on some node may use."""

    endpoints: tuple[str, ...]
    is_complete: bool
    """False while a new directory has not had the time to hear of all drafters."""

    def merged_with(self, known: Sequence[str]) -> tuple[str, ...]:
        """What to use after having used `known`: a picture that is not complete takes nothing away."""
        if self.is_complete:
            return self.endpoints
        return (*known, *(endpoint for endpoint in self.endpoints if endpoint not in known))


class ClusterView:
    """Drafters that have been heard of within `timeout_s`. Times are seconds of one monotonic clock."""

    def __init__(self, now_s: float, timeout_s: float = 3.0) -> None:
        self._timeout_s = timeout_s
        self._complete_at_s = now_s + timeout_s
        self._records: dict[str, DrafterRecord] = {}
        self._heard_at_s: dict[str, float] = {}

    def register(self, record: DrafterRecord, now_s: float) -> None:
        """Adds a drafter, or replaces what was known of it."""
        self._records[record.replica_id] = record
        self._heard_at_s[record.replica_id] = now_s

    def heartbeat(self, replica_id: str, now_s: float) -> bool:
        """Notes that a drafter lives. False when it is not known (any more) and has to register."""
        self._forget_silent(now_s)
        if replica_id not in self._records:
            return False
        self._heard_at_s[replica_id] = now_s
        return True

    def remove(self, replica_id: str) -> None:
        """Takes out a drafter that is about to stop; harmless when it is not known."""
        self._records.pop(replica_id, None)
        self._heard_at_s.pop(replica_id, None)

    def drafters(self, now_s: float) -> list[DrafterRecord]:
        """The drafters that are alive, longest known first."""
        self._forget_silent(now_s)
        return list(self._records.values())

    def choose(self, node_id: str, now_s: float) -> DrafterChoice:
        """Drafters on the verifier's node; where there is none, those of other nodes that can be reached."""
        records = self.drafters(now_s)
        local = [
            endpoint for record in records if record.node_id == node_id for endpoint in record.local_endpoints
        ]
        remote = [endpoint for record in records for endpoint in record.remote_endpoints]
        return DrafterChoice(tuple(local or remote), is_complete=now_s >= self._complete_at_s)

    def _forget_silent(self, now_s: float) -> None:
        silent = [
            replica_id
            for replica_id, heard_at_s in self._heard_at_s.items()
            if now_s - heard_at_s > self._timeout_s
        ]
        for replica_id in silent:
            self.remove(replica_id)
