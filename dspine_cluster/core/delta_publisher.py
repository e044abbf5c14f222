"""A replica's side of the cluster's picture: numbers its deltas and remembers what a snapshot has to say."""

from __future__ import annotations

from collections.abc import Iterable

from dspine_cluster.core.cluster_records import ReplicaDelta, ReplicaLoad, ReplicaNews
from dspine_cluster.core.page_hash import PageKey


class DeltaPublisher:
    """The first delta is a snapshot; so is the next one after `restart`."""

    def __init__(self, replica_id: str, epoch: str) -> None:
        self._replica_id = replica_id
        self._epoch = epoch
        self._sequence = 0
        self._keys: set[PageKey] = set()
        self._last_admitted: tuple[str, ...] = ()
        self._news: ReplicaNews | None = None
        self._next_is_snapshot = True

    def restart(self) -> None:
        """The last delta was not taken, or may not have arrived: tell everything next time."""
        self._next_is_snapshot = True

    def make_delta(
        self,
        load: ReplicaLoad,
        added: Iterable[PageKey] = (),
        removed: Iterable[PageKey] = (),
        admitted: Iterable[str] = (),
        news: ReplicaNews | None = None,
    ) -> ReplicaDelta:
        """The next delta. A key that is both removed and added since the last one is cached."""
        new, gone = set(added), set(removed)
        gone -= new
        self._keys -= gone
        self._keys |= new
        self._sequence += 1
        again = self._last_admitted if self._next_is_snapshot else ()
        self._last_admitted = (*again, *admitted)
        self._news = news or self._news
        is_snapshot, self._next_is_snapshot = self._next_is_snapshot, False
        return ReplicaDelta(
            replica_id=self._replica_id,
            epoch=self._epoch,
            sequence=self._sequence,
            load=load,
            added=tuple(self._keys if is_snapshot else new),
            removed=() if is_snapshot else tuple(gone),
            admitted=self._last_admitted,
            is_snapshot=is_snapshot,
            news=self._news if is_snapshot else news,
        )
