"""What a fleet needs of a verifier replica, however finely it is simulated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dspine_cluster.core.autoscaling_stats import VerifierStats
from dspine_cluster.core.cluster_records import ReplicaLoad
from dspine_cluster.core.page_hash import PageKey
from dspine_cluster.sim.drafters import SimulatedDrafter
from dspine_cluster.sim.workload import Talk


@dataclass(slots=True)
class Work:
    """One request. After the loss of its verifier it goes on elsewhere, with what it had as part of its prompt."""

    uid: str
    talk: Talk
    turn: int
    arrived_s: float
    on_end: Callable[[Work], None]
    """Called when the last token is there."""
    first_s: float | None = None
    """When the first token was there."""
    num_produced: int = 0
    """Tokens that were there before its present verifier."""
    cached_tokens: int = 0
    """Of the prompt, found at its last verifier."""

    @property
    def prompt_tokens(self) -> int:
        return self.talk.exchanges[self.turn].prompt_tokens + self.num_produced

    @property
    def output_tokens(self) -> int:
        """Still to come when it came to its present verifier."""
        return self.talk.exchanges[self.turn].output_tokens - self.num_produced


class Replica(Protocol):
    """A verifier."""

    name: str
    drafter: SimulatedDrafter | None

    @property
    def num_requests(self) -> int: ...

    def keys(self, work: Work) -> Sequence[PageKey]:
        """By which a request is placed."""
        ...

    def submit(self, work: Work) -> None:
        """Take a request in."""
        ...

    @property
    def has_news(self) -> bool:
        """Whether load, keys or admitted requests may have changed since the latter were last taken."""
        ...

    def load(self) -> ReplicaLoad:
        """How busy it is now."""
        ...

    def take_keys(self) -> tuple[frozenset[PageKey], frozenset[PageKey]]:
        """Restorable prefixes that came and went since this was last asked."""
        ...

    def take_admitted(self) -> list[str]: ...

    def observe(self, is_draining: bool) -> VerifierStats:
        """Figures since the last time."""
        ...

    def stop(self) -> list[Work]:
        """It is lost, and what it had."""
        ...
