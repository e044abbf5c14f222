"""Sends a call to the replica that placement chose: all that depends on how Serve routes.

Serve keeps the calls that wait for a replica in queues, and has tasks that look for a replica for whichever is next. A
router that gives such a task no replica makes it spin, one that raises there leaves the caller waiting for ever, and
a replica found for one call may be given to another. So a pinned call never enters a queue: it gets its replica, or an
error, where Serve asks for one. Serve then reserves a slot on the replica, and asks again if it gets none.

Serve sends this module by value to those who route: a class defined here is another one in each process. What callers
have to share with the router is in `pins`.
"""

from __future__ import annotations

from random import random

from ray.serve._private.common import ReplicaID
from ray.serve._private.request_router import PendingRequest, RunningReplica
from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter

from dspine_serve.pins import Pin, PinRefusal, PinRefusedError


class PinnedRouter(PowerOfTwoChoicesRequestRouter):
    """Serve's default for calls that are not pinned.

        async with handle.choose_replica(Pin(replica_id)) as selection:
            stream = handle.dispatch(selection, request)

    raises PinRefusedError on entry. Nothing waits but for the replica's answer: one that hangs gives none, so give up
    after a while. The slot is freed when the context is left before the dispatch, or when the call has ended.
    """

    def initialize_state(self) -> None:
        self._dead: set[ReplicaID] = set()

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        self._dead.add(replica_id)
        super().on_replica_actor_died(replica_id)

    async def _choose_replica_for_request(
        self, pending_request: PendingRequest, *, is_retry: bool = False
    ) -> RunningReplica:
        pin = pending_request.args[0] if pending_request.args else None
        if not isinstance(pin, Pin):
            return await super()._choose_replica_for_request(pending_request, is_retry=is_retry)
        if is_retry:
            raise PinRefusedError(pin.replica_id, self._why_refused(pin.replica_id))
        replica = self._find(pin)
        pending_request.args[0] = Pin(replica.replica_id.unique_id)
        return replica

    def _find(self, pin: Pin) -> RunningReplica:
        if pin.replica_id:
            known = self._replicas.get(self._full_id(pin.replica_id))
            candidates = [] if known is None else [known]
        else:
            candidates = [r for r in self._replicas.values() if r.replica_id.unique_id not in pin.exclude]
        if not candidates:
            raise PinRefusedError(pin.replica_id, PinRefusal.UNKNOWN)
        lengths = self._replica_queue_len_cache
        return min(candidates, key=lambda replica: (lengths.get(replica.replica_id) or 0, random()))

    def _why_refused(self, replica_id: str) -> PinRefusal:
        """Serve drops a replica that stops, and forgets the queue of one that cannot be reached."""
        full_id = self._full_id(replica_id)
        if full_id in self._dead:
            return PinRefusal.DEAD
        if full_id not in self._replicas:
            return PinRefusal.UNKNOWN
        is_reachable = self._replica_queue_len_cache.get(full_id) is not None
        return PinRefusal.FULL if is_reachable else PinRefusal.UNREACHABLE

    def _full_id(self, replica_id: str) -> ReplicaID:
        return ReplicaID(replica_id, self._deployment_id)
