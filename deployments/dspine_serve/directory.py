"""The directory: one replica that knows who lives where, how busy each is and what it has cached.

It holds a picture, nothing that must survive: replicas tell a new directory everything again.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn, TypeVar

from dspine_cluster.core.awake_clock import AwakeClock
from dspine_cluster.core.cluster_records import (
    ClusterUpdates,
    Cursor,
    Fingerprints,
    ReplicaDelta,
    ReplicaRecord,
)
from dspine_cluster.core.cluster_view import ClusterView, DeltaReply, DrafterChoice

T = TypeVar("T")

_TICK_S = 0.25
"""How often silence is looked for."""
_MAX_TICK_GAP_S = 1.0


class Directory:
    """Replicas register and push deltas; ingresses follow all events, verifiers the drafters that they may use."""

    def __init__(self) -> None:
        self._clock = AwakeClock(_MAX_TICK_GAP_S)
        self._view = ClusterView(self._clock(), epoch=uuid.uuid4().hex)
        self._events = _Bell()
        self._roster = _Bell()
        self._rung = (0, 0)
        self._ticking = asyncio.get_running_loop().create_task(self._tick())

    async def register(self, record: ReplicaRecord) -> None:
        """Adds a replica, or replaces what was known of it. A snapshot has to follow."""
        self._view.register(record, self._clock())
        self._ring()

    async def push(self, delta: ReplicaDelta) -> DeltaReply:
        """Takes in what has changed on a replica, which also says that it lives."""
        reply = self._view.apply(delta, self._clock())
        self._ring()
        return reply

    async def remove(self, replica_id: str) -> None:
        """Takes out a replica that stops or was seen dead. One that lives after all is told to register."""
        self._view.remove(replica_id)
        self._ring()

    async def updates(self, cursor: Cursor, wait_s: float) -> ClusterUpdates:
        """What a reader at `cursor` has missed, as soon as there is something; no events when `wait_s` pass first."""
        return await self._when(
            self._events,
            wait_s,
            lambda: self._view.updates_since(cursor, self._clock()),
            lambda updates: updates.cursor != cursor,
        )

    async def choose_drafters(
        self, node_id: str, fingerprints: Fingerprints, known: tuple[str, ...] = (), wait_s: float = 0.0
    ) -> DrafterChoice:
        """The drafters for a verifier on `node_id`, as soon as they are others than the endpoints `known`, at the
        latest after `wait_s`."""
        return await self._when(
            self._roster,
            wait_s,
            lambda: self._view.choose(node_id, self._clock(), fingerprints),
            lambda choice: choice.merged_with(known) != known,
        )

    async def _when(
        self, bell: _Bell, wait_s: float, look: Callable[[], T], is_news: Callable[[T], bool]
    ) -> T:
        """What `look` gives, once that is news or `wait_s` have passed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while not is_news(seen := look()):
                    await bell.wait()
                return seen
        return look()

    async def _tick(self) -> NoReturn:
        """Silence must be noticed although nobody calls."""
        while True:
            await asyncio.sleep(_TICK_S)
            self._view.tick(self._clock())
            self._ring()

    def _ring(self) -> None:
        """Wake those who wait for what has happened."""
        events, roster = self._rung
        self._rung = self._view.num_events, self._view.num_roster_changes
        if self._view.num_events != events:
            self._events.ring()
        if self._view.num_roster_changes != roster:
            self._roster.ring()


class _Bell:
    """Wakes all who wait, and then has to be rung again."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self) -> None:
        await self._event.wait()
