"""What a verifier tells of its load, between the loop's thread and whoever publishes it."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace

from dspine_cluster.core.cluster_records import IDLE, ReplicaLoad


class LoadReport:
    """Requests count from their arrival on, however long the loop's pass takes before it takes them in. Methods may be
    called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._load = IDLE
        self._arrived: dict[int, int] = {}  # uid -> tokens, of requests that the loop has not taken in yet
        self._admitted: list[str] = []

    def note_arrival(self, uid: int, request_id: str, num_tokens: int) -> None:
        """A request with so many tokens to prefill at most is about to be given to the loop."""
        with self._lock:
            self._arrived[uid] = num_tokens
            self._admitted.append(request_id)

    def update(self, load: ReplicaLoad, taken_in: Iterable[int]) -> None:
        """The loop's load now, which counts the requests `taken_in` unless they have ended already."""
        with self._lock:
            self._load = load
            for uid in taken_in:
                del self._arrived[uid]

    def take(self) -> tuple[ReplicaLoad, tuple[str, ...]]:
        """The load, and the ids of the requests that have arrived since the last call."""
        with self._lock:
            admitted, self._admitted = tuple(self._admitted), []
            load = replace(
                self._load,
                waiting_requests=self._load.waiting_requests + len(self._arrived),
                queued_tokens=self._load.queued_tokens + sum(self._arrived.values()),
            )
            return load, admitted
