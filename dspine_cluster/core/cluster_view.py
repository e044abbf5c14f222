"""The directory's picture of the cluster, from what each replica last said of itself.

The picture is advisory. It may be stale, and nothing depends on it for correctness.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from dspine_cluster.core.cluster_records import (
    ANY_MODELS,
    IDLE,
    ClusterEvent,
    ClusterUpdates,
    Cursor,
    DrafterRecord,
    Fingerprints,
    Removal,
    ReplicaDelta,
    ReplicaLoad,
    ReplicaNews,
    ReplicaRecord,
    Roster,
)
from dspine_cluster.core.event_log import EventLog
from dspine_cluster.core.page_hash import PageKey


class DeltaReply(StrEnum):
    """What a replica has to do after its delta."""

    OK = "ok"
    SNAPSHOT = "snapshot"
    """Some delta is missing: send everything next time."""
    REGISTER = "register"
    """The replica is not known (any more): register, then send everything."""


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


@dataclass(slots=True)
class _Known:
    """One replica."""

    record: ReplicaRecord
    heard_at_s: float
    load: ReplicaLoad = IDLE
    keys: set[PageKey] = field(default_factory=set)
    sequence: int | None = None
    """Of the last delta; None before a snapshot has come."""
    news: ReplicaNews | None = None

    def take(self, delta: ReplicaDelta) -> None:
        if delta.is_snapshot:
            self.keys = set(delta.added)
        else:
            self.keys.difference_update(delta.removed)
            self.keys.update(delta.added)
        self.load = delta.load
        self.news = delta.news or self.news
        self.sequence = delta.sequence

    def as_snapshot(self) -> ReplicaDelta:
        return ReplicaDelta(
            replica_id=self.record.replica_id,
            epoch=self.record.epoch,
            sequence=self.sequence or 0,
            load=self.load,
            added=tuple(self.keys),
            is_snapshot=True,
            news=self.news,
        )


class ClusterView:
    """Replicas that have been heard of within `timeout_s`, and a log of what changed, for those who follow.

    Times are seconds of one monotonic clock. `epoch` tells the logs of two directories apart.
    """

    def __init__(self, now_s: float, timeout_s: float = 3.0, *, epoch: str, max_events: int = 10_000) -> None:
        assert epoch, "a reader's first cursor has no epoch"
        self._timeout_s = timeout_s
        self._complete_at_s = now_s + timeout_s
        self._is_complete = False
        self._epoch = epoch
        self._log: EventLog[ClusterEvent] = EventLog(max_events)
        self._known: dict[str, _Known] = {}
        self.num_roster_changes = 0
        """How often a replica has come, changed its record or gone, or the picture has become complete."""

    @property
    def num_events(self) -> int:
        """How many events there have been for those who follow."""
        return self._log.last

    def register(self, record: ReplicaRecord, now_s: float) -> None:
        """Adds a replica, or replaces what was known of it; a restarted one (another epoch) has an empty cache."""
        known = self._known.get(record.replica_id)
        if known is None or known.record.epoch != record.epoch:
            self._known[record.replica_id] = _Known(record, now_s)
        else:
            known.record, known.heard_at_s = record, now_s
        self.num_roster_changes += 1
        self._log.append(record)

    def apply(self, delta: ReplicaDelta, now_s: float) -> DeltaReply:
        """Takes in a delta, which also says that the replica lives. One that came before is passed over, and one that
        changes nothing is not told to those who follow."""
        self.tick(now_s)
        known = self._known.get(delta.replica_id)
        if known is None or known.record.epoch != delta.epoch:
            return DeltaReply.REGISTER
        known.heard_at_s = now_s
        if known.sequence is not None and delta.sequence <= known.sequence:
            return DeltaReply.OK
        if not delta.is_snapshot and (known.sequence is None or delta.sequence != known.sequence + 1):
            return DeltaReply.SNAPSHOT
        is_news = delta.has_changes or delta.load != known.load
        known.take(delta)
        if is_news:
            self._log.append(delta)
        return DeltaReply.OK

    def heartbeat(self, replica_id: str, now_s: float) -> bool:
        """Notes that a replica lives. False when it is not known (any more) and has to register."""
        self.tick(now_s)
        known = self._known.get(replica_id)
        if known is None:
            return False
        known.heard_at_s = now_s
        return True

    def remove(self, replica_id: str) -> None:
        """Takes out a replica that stops or has died; harmless when it is not known."""
        if self._known.pop(replica_id, None) is not None:
            self.num_roster_changes += 1
            self._log.append(Removal(replica_id))

    def updates_since(self, cursor: Cursor, now_s: float) -> ClusterUpdates:
        """What a reader at `cursor` has missed; a snapshot where the log does not reach back.

        A snapshot is events like any other: it takes nothing away until its roster says who lives, and a directory
        that is new gives no roster before it has had the time to hear of all replicas.
        """
        self.tick(now_s)
        missed = self._log.after(cursor.sequence) if cursor.epoch == self._epoch else None
        events = tuple(self._snapshot()) if missed is None else tuple(missed)
        return ClusterUpdates(Cursor(self._epoch, self._log.last), events)

    def records(self, now_s: float) -> list[ReplicaRecord]:
        """All replicas that are alive, longest known first."""
        self.tick(now_s)
        return [known.record for known in self._known.values()]

    def drafters(self, now_s: float) -> list[DrafterRecord]:
        """The drafters that are alive, longest known first."""
        return [record for record in self.records(now_s) if isinstance(record, DrafterRecord)]

    def choose(self, node_id: str, now_s: float, fingerprints: Fingerprints = ANY_MODELS) -> DrafterChoice:
        """Drafters on the verifier's node that fit its `fingerprints`; where there is none, those of other nodes that
        can be reached."""
        fitting = [
            record for record in self.drafters(now_s) if fingerprints.fits_drafter(record.fingerprints)
        ]
        local = [e for record in fitting if record.node_id == node_id for e in record.local_endpoints]
        remote = [e for record in fitting for e in record.remote_endpoints]
        return DrafterChoice(tuple(local or remote), is_complete=now_s >= self._complete_at_s)

    def tick(self, now_s: float) -> None:
        """Forgets who has been silent, and says who lives once all have had the time to register."""
        silent = [
            replica_id
            for replica_id, known in self._known.items()
            if now_s - known.heard_at_s > self._timeout_s
        ]
        for replica_id in silent:
            self.remove(replica_id)
        if not self._is_complete and now_s >= self._complete_at_s:
            self._is_complete = True
            self.num_roster_changes += 1
            self._log.append(Roster(frozenset(self._known)))

    def _snapshot(self) -> Iterator[ClusterEvent]:
        for known in self._known.values():
            yield known.record
            if known.sequence is not None:
                yield known.as_snapshot()
        if self._is_complete:
            yield Roster(frozenset(self._known))
