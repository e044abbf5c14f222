"""What replicas tell of themselves, and the events that carry it to whoever places requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from dspine_cluster.core.page_hash import PageKey
from dspine_cluster.core.verifier_figures import VerifierFigures

NO_DRAFTER = "none"
"""Drafter fingerprint of a verifier that always decodes plainly."""


@dataclass(frozen=True, slots=True)
class Fingerprints:
    """Which models a replica has loaded, or a request needs. An empty one is not known, or not asked for: fits any."""

    target: str = ""
    drafter: str = ""
    tokenizer: str = ""

    def fits_request(self, wanted: Fingerprints) -> bool:
        """Whether a verifier with these may serve a request that wants `wanted`; its drafter is its own affair."""
        if wanted is ANY_MODELS:
            return True
        return _fits(self.target, wanted.target) and _fits(self.tokenizer, wanted.tokenizer)

    def fits_drafter(self, drafter: Fingerprints) -> bool:
        """Whether a drafter with the fingerprints `drafter` may draft for a verifier with these."""
        return self.fits_request(drafter) and _fits(self.drafter, drafter.drafter)


ANY_MODELS = Fingerprints()


def _fits(one: str, other: str) -> bool:
    return one == other or not one or not other


@dataclass(frozen=True, slots=True)
class VerifierRecord:
    """What a verifier replica tells once; `epoch` differs after every restart."""

    replica_id: str
    node_id: str
    epoch: str
    fingerprints: Fingerprints = ANY_MODELS
    max_requests: int = 256
    """Requests that it takes at a time, running and waiting."""


@dataclass(frozen=True, slots=True)
class DrafterRecord:
    """What a drafter replica tells once; `epoch` differs after every restart."""

    replica_id: str
    node_id: str
    local_endpoints: tuple[str, ...]
    """Reachable on the same node only."""
    remote_endpoints: tuple[str, ...]
    """Reachable from every node."""
    epoch: str
    fingerprints: Fingerprints = ANY_MODELS
    max_requests: int = 1024
    """Requests that it drafts for at a time."""


ReplicaRecord = VerifierRecord | DrafterRecord


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """How busy a replica is. A drafter counts its open requests as running and has no queued tokens."""

    running_requests: int = 0
    waiting_requests: int = 0
    queued_tokens: int = 0
    """Tokens still to be prefilled, of waiting and of running requests, cached ones left out."""
    prefill_tokens_per_s: float = 0.0
    """Measured under the present load; 0 when not known."""
    cache_lifetime_s: float = inf
    """How long what is cached stays cached without being used; infinite while nothing is evicted."""
    is_draining: bool = False
    """It finishes what it has and takes nothing new."""


IDLE = ReplicaLoad()


Metrics = tuple[tuple[str, float], ...]
"""Everything that a replica counts, by the name of the metric and what it is counted by, since its start."""


@dataclass(frozen=True, slots=True)
class VerifierNews:
    """What a verifier tells for people who look. Nothing is placed by it."""

    figures: VerifierFigures = field(default_factory=VerifierFigures)
    page_usage_ratio: float = 0.0
    attached: tuple[tuple[str, int], ...] = ()
    """Endpoint of each drafter that it is connected to, and the requests that are attached there."""
    metrics: Metrics = ()


@dataclass(frozen=True, slots=True)
class DrafterNews:
    """The same of a drafter."""

    metrics: Metrics = ()


ReplicaNews = VerifierNews | DrafterNews


def coarse(value: float) -> float:
    """`value` with two significant digits: enough to place by, and mostly what has been told already."""
    return float(f"{value:.2g}")


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """A replica's load, and what has changed since it was last asked."""

    load: ReplicaLoad
    added: frozenset[PageKey] = frozenset()
    """Keys of the pages that end a restorable prefix: it has become cached."""
    removed: frozenset[PageKey] = frozenset()
    admitted: tuple[str, ...] = ()
    """Uids of the requests that `load` counts for the first time."""
    news: ReplicaNews | None = None
    """None: nothing new since it was told last."""


@dataclass(frozen=True, slots=True)
class ReplicaDelta:
    """What has changed on a replica since its last delta."""

    replica_id: str
    epoch: str
    sequence: int
    """One more than the last delta's; a snapshot may have any."""
    load: ReplicaLoad
    added: tuple[PageKey, ...] = ()
    """Keys of the pages that end a restorable prefix: it has become cached."""
    removed: tuple[PageKey, ...] = ()
    admitted: tuple[str, ...] = ()
    """Uids of the requests that `load` counts for the first time, so that reservations for them end."""
    is_snapshot: bool = False
    """`added` is everything that is cached; what was known before is void."""
    news: ReplicaNews | None = None
    """None: what was told last still holds."""

    @property
    def has_changes(self) -> bool:
        """Whether it says anything but the load."""
        return self.is_snapshot or self.news is not None or bool(self.added or self.removed or self.admitted)


@dataclass(frozen=True, slots=True)
class Removal:
    """A replica is gone, or about to be: nothing new is sent to it."""

    replica_id: str


@dataclass(frozen=True, slots=True)
class Roster:
    """All replicas that live. Whoever is not named is gone."""

    replica_ids: frozenset[str]


ClusterEvent = VerifierRecord | DrafterRecord | ReplicaDelta | Removal | Roster


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a reader has come in one directory's events; the default has read nothing."""

    epoch: str = ""
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class ClusterUpdates:
    """Events in order, and where to go on reading."""

    cursor: Cursor
    events: tuple[ClusterEvent, ...]
