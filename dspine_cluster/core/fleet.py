"""The picture of the cluster by which requests are placed: replicas, their load, their caches, and reservations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from random import Random

from dspine_cluster.core.cluster_records import (
    IDLE,
    NO_DRAFTER,
    ClusterEvent,
    DrafterRecord,
    Fingerprints,
    Removal,
    ReplicaDelta,
    ReplicaLoad,
    Roster,
    VerifierRecord,
)
from dspine_cluster.core.key_index import KeyIndex
from dspine_cluster.core.load_order import LoadOrder
from dspine_cluster.core.placement_score import PlacementConfig, miss_token_s, standing_cost_s


@dataclass(slots=True)
class Verifier:
    """A verifier as placement sees it."""

    record: VerifierRecord
    order: LoadOrder
    """Of the verifiers that serve the same."""
    load: ReplicaLoad = IDLE
    reserved_tokens: int = 0
    """To be prefilled for requests that its load does not count yet."""
    reserved_requests: int = 0
    is_routable: bool = False
    """It has room and stays. Kept up to date by the fleet, like the cost."""
    standing_cost_s: float = 0.0
    """What it costs whatever is placed there."""
    miss_token_s: float = 0.0
    """What each token costs that is not cached there."""

    @property
    def num_requests(self) -> int:
        return self.load.running_requests + self.load.waiting_requests + self.reserved_requests

    @property
    def wants_drafter(self) -> bool:
        return self.record.fingerprints.drafter != NO_DRAFTER


@dataclass(slots=True)
class Drafter:
    """A drafter as placement sees it."""

    record: DrafterRecord
    load: ReplicaLoad = IDLE
    reserved_requests: int = 0
    was_routable: bool = False
    """When its node's verifiers were put in order last."""

    @property
    def num_requests(self) -> int:
        return self.load.running_requests + self.load.waiting_requests + self.reserved_requests

    @property
    def is_routable(self) -> bool:
        return self.num_requests < self.record.max_requests and not self.load.is_draining


@dataclass(frozen=True, slots=True)
class _Reservation:
    verifier: Verifier
    drafter: Drafter | None
    num_tokens: int


class Fleet:
    """Changes with each event and reservation, so that asking for the least loaded or for holders scans nothing."""

    def __init__(self, config: PlacementConfig, random: Random) -> None:
        self._config = config
        self._random = random
        self.verifiers: dict[str, Verifier] = {}
        self.drafters: dict[str, Drafter] = {}
        self.verifier_keys = KeyIndex(random)
        self.drafter_keys = KeyIndex(random)
        self._orders: dict[Fingerprints, LoadOrder] = {}
        """Routable verifiers by cost, one order for each kind of verifier."""
        self._remote_drafters = LoadOrder(random)
        """Routable drafters that other nodes reach."""
        self._node_verifiers: dict[str, dict[str, Verifier]] = {}
        self._node_drafters: dict[str, dict[str, Drafter]] = {}
        self._reservations: dict[str, _Reservation] = {}
        self._evicted: dict[str, str] = {}  # replica id -> epoch

    # What is known

    def least_loaded(
        self, wanted: Fingerprints, count: int, accepts: Callable[[Verifier], bool]
    ) -> Iterator[Verifier]:
        """Up to `count` routable and accepted verifiers of each kind that fits."""
        for kind, order in self._orders.items():
            if kind.fits_request(wanted):
                for name in order.cheapest(count, lambda name: accepts(self.verifiers[name])):
                    yield self.verifiers[name]

    def local_drafters(self, verifier: Verifier) -> Iterator[Drafter]:
        """The routable drafters on the verifier's node that fit it."""
        fingerprints = verifier.record.fingerprints
        for drafter in self._node_drafters.get(verifier.record.node_id, {}).values():
            if drafter.is_routable and fingerprints.fits_drafter(drafter.record.fingerprints):
                yield drafter

    def remote_drafter(self, verifier: Verifier, accepts: Callable[[Drafter], bool]) -> Drafter | None:
        """The least busy routable drafter that fits the verifier and is reached from every node."""
        fingerprints = verifier.record.fingerprints

        def fits(name: str) -> bool:
            drafter = self.drafters[name]
            return fingerprints.fits_drafter(drafter.record.fingerprints) and accepts(drafter)

        names = self._remote_drafters.cheapest(1, fits)
        return self.drafters[names[0]] if names else None

    # What changes

    def apply(self, events: Iterable[ClusterEvent]) -> None:
        """Take in what the directory tells, in order."""
        for event in events:
            match event:
                case VerifierRecord() | DrafterRecord():
                    self._register(event)
                case ReplicaDelta():
                    self._take(event)
                case Removal():
                    self.remove(event.replica_id)
                    self._evicted.pop(event.replica_id, None)
                case Roster():
                    gone = (
                        self._evicted.keys() | self.verifiers.keys() | self.drafters.keys()
                    ) - event.replica_ids
                    for name in gone:
                        self.remove(name)
                        self._evicted.pop(name, None)

    def evict(self, replica_id: str) -> None:
        """Forget a replica that was seen dead, and pass over what is still told of it until it restarts, or until the
        directory has removed it: one that only hung registers again."""
        replica = self.verifiers.get(replica_id) or self.drafters.get(replica_id)
        if replica is not None:
            self._evicted[replica_id] = replica.record.epoch
            self.remove(replica_id)

    def remove(self, replica_id: str) -> None:
        """Forget a replica; harmless when it is not known."""
        verifier = self.verifiers.pop(replica_id, None)
        if verifier is not None:
            self.verifier_keys.drop(replica_id)
            verifier.order.discard(replica_id)
            del self._node_verifiers[verifier.record.node_id][replica_id]
        drafter = self.drafters.pop(replica_id, None)
        if drafter is not None:
            self.drafter_keys.drop(replica_id)
            self._remote_drafters.discard(replica_id)
            del self._node_drafters[drafter.record.node_id][replica_id]
            self._reorder_node(drafter.record.node_id)

    def reserve(self, uid: str, verifier: Verifier, drafter: Drafter | None, num_tokens: int) -> None:
        """Count a request before any load report does."""
        assert uid not in self._reservations, f"{uid} is placed already"
        self._reservations[uid] = _Reservation(verifier, drafter, num_tokens)
        self._reserve(self._reservations[uid], 1)

    def release(self, uid: str) -> None:
        """End a reservation; harmless when there is none (any more)."""
        reservation = self._reservations.pop(uid, None)
        if reservation is not None:
            self._reserve(reservation, -1)

    @property
    def num_reservations(self) -> int:
        return len(self._reservations)

    def _register(self, record: VerifierRecord | DrafterRecord) -> None:
        name = record.replica_id
        if self._evicted.get(name) == record.epoch:
            return
        known = self.verifiers.get(name) or self.drafters.get(name)
        if known is not None and known.record == record:
            return
        self.remove(name)
        if isinstance(record, VerifierRecord):
            order = self._orders.setdefault(_kind(record), LoadOrder(self._random))
            verifier = self.verifiers[name] = Verifier(record, order)
            self._node_verifiers.setdefault(record.node_id, {})[name] = verifier
            self._reorder(verifier)
        else:
            drafter = self.drafters[name] = Drafter(record)
            self._node_drafters.setdefault(record.node_id, {})[name] = drafter
            self._reorder_drafter(drafter)

    def _take(self, delta: ReplicaDelta) -> None:
        verifier = self.verifiers.get(delta.replica_id)
        drafter = self.drafters.get(delta.replica_id)
        replica = verifier or drafter
        if replica is None or replica.record.epoch != delta.epoch:
            return
        index = self.drafter_keys if verifier is None else self.verifier_keys
        if delta.is_snapshot:
            index.drop(delta.replica_id)
        index.remove(delta.replica_id, delta.removed)
        index.add(delta.replica_id, delta.added)
        replica.load = delta.load
        if verifier is not None:
            for uid in delta.admitted:
                self.release(uid)
            self._reorder(verifier)
        elif drafter is not None:
            self._reorder_drafter(drafter)

    def _reserve(self, reservation: _Reservation, sign: int) -> None:
        verifier, drafter = reservation.verifier, reservation.drafter
        verifier.reserved_requests += sign
        verifier.reserved_tokens += sign * reservation.num_tokens
        self._reorder(verifier)
        if drafter is not None:
            drafter.reserved_requests += sign
            self._reorder_drafter(drafter)

    def _reorder(self, verifier: Verifier) -> None:
        name = verifier.record.replica_id
        if self.verifiers.get(name) is not verifier:
            return
        is_remote = verifier.wants_drafter and not any(self.local_drafters(verifier))
        verifier.standing_cost_s = is_remote * self._config.remote_drafter_s + standing_cost_s(
            verifier.load, verifier.reserved_tokens, verifier.reserved_requests, self._config
        )
        verifier.miss_token_s = miss_token_s(verifier.load, self._config)
        verifier.is_routable = (
            verifier.num_requests < verifier.record.max_requests and not verifier.load.is_draining
        )
        if verifier.is_routable:
            verifier.order.set(name, verifier.standing_cost_s)
        else:
            verifier.order.discard(name)

    def _reorder_node(self, node_id: str) -> None:
        for verifier in self._node_verifiers.get(node_id, {}).values():
            self._reorder(verifier)

    def _reorder_drafter(self, drafter: Drafter) -> None:
        name = drafter.record.replica_id
        if self.drafters.get(name) is not drafter:
            return
        if drafter.is_routable and drafter.record.remote_endpoints:
            self._remote_drafters.set(name, float(drafter.num_requests))
        else:
            self._remote_drafters.discard(name)
        if drafter.is_routable != drafter.was_routable:
            drafter.was_routable = drafter.is_routable
            self._reorder_node(drafter.record.node_id)


def _kind(record: VerifierRecord) -> Fingerprints:
    fingerprints = record.fingerprints
    return Fingerprints(target=fingerprints.target, tokenizer=fingerprints.tokenizer)
