"""Where an ingress sends its requests: its own copy of the cluster's picture, and what it has placed by it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from dspine_cluster.core.cluster_records import ANY_MODELS, ClusterUpdates, Fingerprints
from dspine_cluster.core.placement import Placement, PlacementRequest, Placer, RefusalReason
from dspine_serve.lifeline import Lifeline
from dspine_serve.pins import Pin

_logger = logging.getLogger(__name__)

_SHUN_S = 1.0
_DOUBT_S = 5.0
"""How long a replica that is gone from the picture may be silent towards a stream. One that only was too busy to tell
the directory of itself goes on sending, and soon registers again."""


class RefusedError(Exception):
    """A request was not taken: by `replica_id`, or, if that is empty, because there was none to choose."""

    def __init__(self, replica_id: str, reason: str, *, is_full: bool = False) -> None:
        super().__init__(replica_id, reason)
        self.replica_id = replica_id
        self.is_full = is_full
        """There is, or may be, a replica, but without room."""

    def __str__(self) -> str:
        replica_id, reason = self.args
        return f"{replica_id}: {reason}" if replica_id else str(reason)


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where a request goes, for as long as it is there."""

    pin: Pin
    models: Fingerprints = ANY_MODELS
    """Of the verifier; what the request needs where that is not known."""
    drafter_endpoints: tuple[str, ...] = ()
    """Of the drafter that was picked with the verifier."""
    lifeline: Lifeline = field(default_factory=Lifeline)
    """Limited while the replica is gone from the picture."""


class Placing:
    """Methods are called in one event loop."""

    def __init__(
        self,
        report_dead: Callable[[str], None],
        placer: Placer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`report_dead` tells the directory of a replica that was seen dead."""
        self.counts: Counter[str] = Counter()
        self._report_dead = report_dead
        self._placer = placer or Placer()
        self._clock = clock
        self._streams: dict[Lifeline, str] = {}
        """Replica id, for each stream that is open."""
        self._shunned: dict[str, float] = {}
        """Replica id -> until when."""
        self._changed = asyncio.Event()

    def apply(self, updates: ClusterUpdates) -> None:
        """Take in what the directory tells. Streams of replicas that it takes out are given up unless they go on."""
        replica_ids = set(self._streams.values())
        known = {name for name in replica_ids if self._placer.knows(name)}
        self._placer.apply(updates)
        now_known = {name for name in replica_ids if self._placer.knows(name)}
        self._limit(known - now_known, _DOUBT_S)
        self._limit(now_known - known, None)
        self._changed.set()

    async def changed(self, timeout_s: float) -> None:
        """Wait until the picture has changed, or for `timeout_s`."""
        self._changed.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return

    @contextmanager
    def place(self, request: PlacementRequest) -> Iterator[Place]:
        """A verifier for the request, reserved until it counts the request itself or the context is left.

        While no verifier is known, because the directory is down or new, it is any that Serve knows.

        Raises:
            RefusedError: there is none.
        """
        outcome = self._placer.choose(request)
        if isinstance(outcome, Placement):
            place = Place(Pin(outcome.verifier_id), outcome.fingerprints, outcome.drafter_endpoints)
            self.counts[f"placements_total{{reason={outcome.reason}}}"] += 1
            self.counts["colocated_placements_total"] += outcome.is_colocated
        elif outcome.reason is RefusalReason.NO_VERIFIER:
            place = Place(Pin(exclude=request.exclude), request.fingerprints)
            self.counts["placements_total{reason=unknown}"] += 1
        else:
            raise RefusedError("", outcome.reason, is_full=outcome.reason is RefusalReason.NO_ROOM)
        _logger.debug("%s goes to %s", request.uid, outcome)
        self.watch(place, place.pin.replica_id)
        try:
            yield place
        finally:
            self._placer.release(request.uid)
            del self._streams[place.lifeline]

    @property
    def knows_verifiers(self) -> bool:
        """Whether the directory hears of any."""
        return self._placer.num_verifiers > 0

    @property
    def has_room(self) -> bool:
        """Whether one of them takes requests."""
        return self._placer.num_routable_verifiers > 0

    def watch(self, place: Place, replica_id: str) -> None:
        """The request is on this replica."""
        self._streams[place.lifeline] = replica_id

    @property
    def shunned(self) -> frozenset[str]:
        """Replicas to which nothing is sent now."""
        now_s = self._clock()
        self._shunned = {name: until_s for name, until_s in self._shunned.items() if now_s < until_s}
        return frozenset(self._shunned)

    def shun(self, replica_id: str) -> None:
        """Send nothing to a replica for a moment: it may have just started, or be about to stop."""
        self._shunned[replica_id] = self._clock() + _SHUN_S

    def evict(self, replica_id: str) -> None:
        """Send nothing more to a replica that was seen dead, and give up all that waits for it."""
        self.shun(replica_id)
        if self._placer.knows(replica_id):
            self._placer.evict(replica_id)
            self._report_dead(replica_id)
        self._limit({replica_id}, 0.0)

    def stats(self) -> dict[str, float]:
        """Figures by metric name."""
        return {
            **self.counts,
            "open_streams": len(self._streams),
            "reservations": self._placer.num_reservations,
        }

    def _limit(self, replica_ids: set[str], limit_s: float | None) -> None:
        for lifeline, replica_id in self._streams.items():
            if replica_id in replica_ids:
                lifeline.limit(limit_s)
