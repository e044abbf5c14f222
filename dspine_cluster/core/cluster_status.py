"""What the cluster does, for people who look: who lives, who drafts for whom, and how fast."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dspine_cluster.core.cluster_records import (
    IDLE,
    ClusterEvent,
    DrafterNews,
    DrafterRecord,
    Metrics,
    Removal,
    ReplicaDelta,
    ReplicaLoad,
    ReplicaNews,
    Roster,
    VerifierNews,
    VerifierRecord,
)
from dspine_cluster.core.verifier_figures import RecentFigures, VerifierFigures

WINDOW_S = 10.0
"""What counts as recent."""


@dataclass(frozen=True, slots=True)
class VerifierStatus:
    """One verifier."""

    record: VerifierRecord
    load: ReplicaLoad
    page_usage_ratio: float
    requests_by_drafter: dict[str, int]
    """Requests that are attached to each drafter that it is connected to, by replica id; by endpoint where no drafter
    is known that has it."""
    total: VerifierFigures
    """Since its start."""
    recent: VerifierFigures
    recent_s: float
    """How long `recent` took."""
    metrics: Metrics = ()

    @property
    def tokens_per_s(self) -> float:
        """Committed recently, by rounds."""
        return self.recent.committed_tokens / self.recent_s


@dataclass(frozen=True, slots=True)
class DrafterStatus:
    """One drafter."""

    record: DrafterRecord
    load: ReplicaLoad
    metrics: Metrics = ()


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """Everything, in the order of the replicas' ids."""

    verifiers: tuple[VerifierStatus, ...] = ()
    drafters: tuple[DrafterStatus, ...] = ()


@dataclass(slots=True)
class _Known:
    record: VerifierRecord | DrafterRecord
    load: ReplicaLoad = IDLE
    news: ReplicaNews | None = None
    recent: RecentFigures = field(default_factory=lambda: RecentFigures(WINDOW_S))


class StatusBoard:
    """Follows the directory's events. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def apply(self, events: Iterable[ClusterEvent], now_s: float) -> None:
        """Take in what the directory tells, in order."""
        for event in events:
            match event:
                case VerifierRecord() | DrafterRecord():
                    known = self._known.get(event.replica_id)
                    if known is None or known.record.epoch != event.epoch:
                        self._known[event.replica_id] = _Known(event)
                    else:
                        known.record = event
                case ReplicaDelta():
                    self._take(event, now_s)
                case Removal():
                    self._known.pop(event.replica_id, None)
                case Roster():
                    for replica_id in self._known.keys() - event.replica_ids:
                        del self._known[replica_id]

    def status(self, now_s: float) -> ClusterStatus:
        """As far as is known now."""
        replicas = [self._known[replica_id] for replica_id in sorted(self._known)]
        drafters = [
            DrafterStatus(known.record, known.load, (known.news or DrafterNews()).metrics)
            for known in replicas
            if isinstance(known.record, DrafterRecord)
        ]
        names = {
            endpoint: drafter.record.replica_id
            for drafter in drafters
            for endpoint in (*drafter.record.local_endpoints, *drafter.record.remote_endpoints)
        }
        verifiers = [
            _verifier_status(known.record, known, names, now_s)
            for known in replicas
            if isinstance(known.record, VerifierRecord)
        ]
        return ClusterStatus(tuple(verifiers), tuple(drafters))

    def _take(self, delta: ReplicaDelta, now_s: float) -> None:
        known = self._known.get(delta.replica_id)
        if known is None or known.record.epoch != delta.epoch:
            return
        known.load = delta.load
        if delta.news is not None:
            known.news = delta.news
            if isinstance(delta.news, VerifierNews):
                known.recent.note(delta.news.figures, now_s)


def _verifier_status(
    record: VerifierRecord, known: _Known, names: dict[str, str], now_s: float
) -> VerifierStatus:
    news = known.news if isinstance(known.news, VerifierNews) else VerifierNews()
    recent, recent_s = known.recent.recent(now_s)
    return VerifierStatus(
        record=record,
        load=known.load,
        page_usage_ratio=news.page_usage_ratio,
        requests_by_drafter={names.get(endpoint, endpoint): count for endpoint, count in news.attached},
        total=known.recent.latest,
        recent=recent,
        recent_s=recent_s,
        metrics=news.metrics,
    )
