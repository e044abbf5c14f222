"""Ways to spread requests over verifiers: the real placement, and those that it is measured against."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from hashlib import blake2b
from itertools import count
from random import Random

from dspine_cluster.core.cluster_records import DrafterRecord, VerifierRecord
from dspine_cluster.core.cluster_view import ClusterView, DeltaReply
from dspine_cluster.core.delta_publisher import DeltaPublisher
from dspine_cluster.core.page_hash import PageKey
from dspine_cluster.core.placement import PlacementRequest, Placer, Refusal
from dspine_cluster.core.placement_score import PlacementConfig
from dspine_cluster.sim.verifier import SimulatedVerifier


class Router(ABC):
    """Picks a verifier, by its number, for each request."""

    @abstractmethod
    def choose(self, uid: str, conversation: int, num_prompt_tokens: int, keys: Sequence[PageKey]) -> int:
        """Where to send a request now. `keys` are those of the full pages of its prompt."""

    def release(self, uid: str) -> None:
        """The request has ended."""
        return

    def follow(self, now_s: float) -> None:
        """Replicas tell how they are; called all the time, with a short period."""
        return


class RoundRobin(Router):
    """Each in turn."""

    def __init__(self, num_verifiers: int) -> None:
        self._num_verifiers = num_verifiers
        self._numbers = count()

    def choose(self, uid: str, conversation: int, num_prompt_tokens: int, keys: Sequence[PageKey]) -> int:
        return next(self._numbers) % self._num_verifiers


class PowerOfTwo(Router):
    """Of two at random the one with fewer requests at this moment: Ray Serve's default, without its probing's delay."""

    def __init__(self, verifiers: Sequence[SimulatedVerifier], random: Random) -> None:
        self._verifiers = verifiers
        self._random = random

    def choose(self, uid: str, conversation: int, num_prompt_tokens: int, keys: Sequence[PageKey]) -> int:
        pair = self._random.sample(range(len(self._verifiers)), 2)
        return min(pair, key=lambda number: self._verifiers[number].num_requests)


class StickyHash(Router):
    """A conversation, with all its branches, stays where rendezvous hashing of its id puts it."""

    def __init__(self, num_verifiers: int) -> None:
        self._num_verifiers = num_verifiers

    def choose(self, uid: str, conversation: int, num_prompt_tokens: int, keys: Sequence[PageKey]) -> int:
        def weight(number: int) -> bytes:
            return blake2b(f"{conversation}/{number}".encode(), digest_size=8).digest()

        return max(range(self._num_verifiers), key=weight)


class JointPlacement(Router):
    """The real placement, in several ingresses that take turns. Each has its own copy of the directory's picture, as
    old as the last time that replicas were followed."""

    def __init__(
        self,
        verifiers: Sequence[SimulatedVerifier],
        config: PlacementConfig,
        random: Random,
        *,
        num_ingresses: int,
        verifiers_per_node: int,
    ) -> None:
        self._verifiers = verifiers
        self._view = ClusterView(0.0, epoch="simulated")
        self._numbers: dict[str, int] = {}
        self._publishers: list[DeltaPublisher] = []
        for number in range(len(verifiers)):
            name, node = f"verifier-{number}", f"node-{number // verifiers_per_node}"
            self._numbers[name] = number
            self._publishers.append(DeltaPublisher(name, "1"))
            self._view.register(VerifierRecord(name, node, "1"), 0.0)
            self._view.register(DrafterRecord(f"drafter-of-{node}", node, ("local",), ("remote",), "1"), 0.0)
        self._placers = [Placer(config, Random(random.random())) for _ in range(num_ingresses)]
        self._turns = count()
        self._placed_by: dict[str, Placer] = {}

    def choose(self, uid: str, conversation: int, num_prompt_tokens: int, keys: Sequence[PageKey]) -> int:
        placer = self._placers[next(self._turns) % len(self._placers)]
        placement = placer.choose(PlacementRequest(uid, num_prompt_tokens, keys))
        assert not isinstance(placement, Refusal), placement.reason
        self._placed_by[uid] = placer
        return self._numbers[placement.verifier_id]

    def release(self, uid: str) -> None:
        self._placed_by.pop(uid).release(uid)

    def follow(self, now_s: float) -> None:
        for publisher, verifier in zip(self._publishers, self._verifiers, strict=True):
            added, removed = verifier.index.events.take()
            delta = publisher.make_delta(verifier.load(), added, removed, verifier.take_admitted())
            reply = self._view.apply(delta, now_s)
            assert reply is DeltaReply.OK, reply
        for drafter in self._view.drafters(now_s):
            self._view.heartbeat(drafter.replica_id, now_s)
        for placer in self._placers:
            placer.apply(self._view.updates_since(placer.cursor, now_s))
