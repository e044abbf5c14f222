"""Which replica a call has to reach, and why it may not. See `router`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dspine_cluster.errors import DspineError


@dataclass(frozen=True, slots=True)
class Pin:
    """The argument of a handle's `choose_replica`: which replica it has to be."""

    replica_id: str = ""
    """Empty: one of those that Serve knows, with few requests."""
    exclude: frozenset[str] = frozenset()
    """Not these, where the replica is not given."""


class PinRefusal(StrEnum):
    """Why a pinned call got no replica."""

    UNKNOWN = "unknown"
    """Serve does not know the replica: it stops, has died, or has only just started."""
    DEAD = "dead"
    """It has just been seen dead."""
    UNREACHABLE = "unreachable"
    """It may live, but does not answer."""
    FULL = "full"
    """It has as many calls as it takes, or takes no more because it stops."""


class PinRefusedError(Exception):
    """The replica does not take the call. `replica_id` is empty where there was none to choose from."""

    def __init__(self, replica_id: str, reason: PinRefusal) -> None:
        super().__init__(replica_id, reason)
        self.replica_id = replica_id
        self.reason = reason

    def __str__(self) -> str:
        return f"replica {self.replica_id or '(any)'} does not take the call: {self.reason}"


class OtherModelsError(DspineError):
    """The replica has other models than the request needs."""
