"""What a directory tells those who ask for everything."""

from __future__ import annotations

from dspine_cluster.core.cluster_records import Cursor, ReplicaDelta
from dspine_cluster.core.cluster_view import ClusterView


def cached_keys(view: ClusterView, replica_id: str, now_s: float = 0.0) -> set[bytes]:
    """The keys of what a replica has cached; none where it is not known."""
    events = view.updates_since(Cursor(), now_s).events
    return {
        key
        for event in events
        if isinstance(event, ReplicaDelta) and event.replica_id == replica_id
        for key in event.added
    }
