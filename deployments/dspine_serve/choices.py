"""What to do when a verifier, or placement, refuses a request."""

from __future__ import annotations

import time
from collections.abc import Callable

from dspine_cluster.errors import EngineStoppedError, OverloadedError
from dspine_serve.placing import Placing, RefusedError

_MAX_CHOICES = 3
"""Verifiers that are asked one right after the other."""
_PATIENCE_S = 5.0
_RESUME_PATIENCE_S = 30.0
"""A client that has half of its answer rather waits for a verifier to start than begins again."""
_LOOK_AGAIN_S = 0.2


class Choices:
    """The choices for one attempt at a request."""

    def __init__(
        self, placing: Placing, *, is_resumed: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._placing = placing
        self._is_resumed = is_resumed
        self._clock = clock
        self._give_up_at_s = clock() + (_RESUME_PATIENCE_S if is_resumed else _PATIENCE_S)
        self._refused: set[str] = set()
        self._is_full = False

    @property
    def exclude(self) -> frozenset[str]:
        """Replicas that are not to be chosen next."""
        return self._placing.shunned | self._refused

    async def after(self, refused: RefusedError) -> None:
        """Return when there may be another choice: at once, or after having waited for the picture to change.

        Raises:
            OverloadedError: there is no room; a request that has begun to stream waits for some first.
            EngineStoppedError: no verifier has come in time.
        """
        self._is_full |= refused.is_full
        if refused.replica_id:
            self._refused.add(refused.replica_id)
            if len(self._refused) < _MAX_CHOICES:
                return
        is_late = self._clock() >= self._give_up_at_s
        if self._is_full and (is_late or not self._is_resumed):
            raise OverloadedError("all replicas have as many requests as they take") from refused
        if is_late:
            raise EngineStoppedError(f"no replica takes the request ({refused})") from refused
        self._refused.clear()
        self._is_full = False
        await self._placing.changed(_LOOK_AGAIN_S)
