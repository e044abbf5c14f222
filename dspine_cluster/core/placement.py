"""Which verifier and which drafter serve a request.

Filter (alive, not draining, room, fingerprints fit), score (prefill saved at restorable prefixes, context that the
drafter has, queued work, running requests, co-location), pick; near ties at random. What was picked is reserved at
once, so that a burst does not pile on one replica before its load is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf
from random import Random

from dspine_cluster.core.cluster_records import ANY_MODELS, ClusterUpdates, Cursor, Fingerprints
from dspine_cluster.core.fleet import Drafter, Fleet, Verifier
from dspine_cluster.core.page_hash import PageKey
from dspine_cluster.core.placement_score import PlacementConfig, prefill_rate
from dspine_cluster.types import PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """What placement has to know of a request."""

    uid: str
    """Never used again, not even by a retry of the same request."""
    num_prompt_tokens: int
    """Forced output included: all that has to be computed before the next token."""
    keys: Sequence[PageKey] = ()
    """Of the full pages of its tokens, as verifiers key them."""
    draft_keys: Sequence[PageKey] = ()
    """Of the same pages, as drafters key them."""
    fingerprints: Fingerprints = ANY_MODELS
    """What the verifier must have loaded: a stream that is resumed elsewhere needs the target that it began with."""
    substitute: Fingerprints | None = None
    """What will do where no verifier with `fingerprints` takes it: while an update replaces them, say."""
    exclude: frozenset[str] = frozenset()
    """Replicas that have refused it, or failed."""


class Reason(StrEnum):
    """Why a verifier was picked."""

    PREFIX = "prefix"
    """It has the longest cached prefix of all."""
    DIVERTED = "diverted"
    """Another has more of the prompt cached, but waiting there would cost more than computing it again."""
    LEAST_LOADED = "least_loaded"
    """Nothing of the prompt is cached anywhere."""


class RefusalReason(StrEnum):
    """Why no verifier was picked."""

    NO_VERIFIER = "no_verifier"
    """None is known."""
    NO_FIT = "no_fit"
    """None has the models that the request needs."""
    EXCLUDED = "excluded"
    """Those that fit have all been tried."""
    DRAINING = "draining"
    """Those that are left are about to stop."""
    NO_ROOM = "no_room"
    """Those that are left have as many requests as they take."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request goes. The reservation lasts until the verifier reports the request as its own, or `release`."""

    uid: str
    verifier_id: str
    fingerprints: Fingerprints
    """Of the verifier."""
    drafter_id: str | None
    """None: it decodes plainly until its verifier finds a drafter."""
    drafter_endpoints: tuple[str, ...]
    """Where the verifier reaches that drafter; empty without one."""
    cached_tokens: int
    """Expected from the verifier's cache."""
    draft_cached_tokens: int
    """Expected in the drafter's context."""
    is_colocated: bool
    """The drafter is on the verifier's node."""
    wait_s: float
    """Expected until prefill begins."""
    reason: Reason

    def __str__(self) -> str:
        drafter = (
            f"{self.drafter_id} {'here' if self.is_colocated else 'elsewhere'}" if self.drafter_id else "none"
        )
        return (
            f"{self.verifier_id}: {self.reason}, {self.cached_tokens} tokens cached, wait {1000 * self.wait_s:.0f} ms, "
            f"drafter {drafter}"
        )


@dataclass(frozen=True, slots=True)
class Refusal:
    """No verifier can take the request now."""

    uid: str
    reason: RefusalReason


@dataclass(frozen=True, slots=True)
class _Pair:
    """A verifier with the drafter on its node that suits it best, if there is one."""

    verifier: Verifier
    cached_tokens: int
    drafter: Drafter | None
    draft_cached_tokens: int
    cost_s: float


class Placer:
    """Places requests by its own copy of the cluster's picture, which the directory's updates keep fresh."""

    def __init__(self, config: PlacementConfig | None = None, random: Random | None = None) -> None:
        self._config = config or PlacementConfig()
        self._random = random or Random()
        self._fleet = Fleet(self._config, self._random)
        self._cursor = Cursor()

    @property
    def cursor(self) -> Cursor:
        """From where the directory has to tell what has happened."""
        return self._cursor

    @property
    def num_reservations(self) -> int:
        """Requests that were placed, and neither reported by their verifier nor released."""
        return self._fleet.num_reservations

    @property
    def num_verifiers(self) -> int:
        """In the picture."""
        return len(self._fleet.verifiers)

    @property
    def num_routable_verifiers(self) -> int:
        """Those that stay and have room."""
        return sum(verifier.is_routable for verifier in self._fleet.verifiers.values())

    def knows(self, replica_id: str) -> bool:
        """Whether the replica is in the picture."""
        return replica_id in self._fleet.verifiers or replica_id in self._fleet.drafters

    def apply(self, updates: ClusterUpdates) -> None:
        """Take in what the directory told after `cursor`."""
        self._fleet.apply(updates.events)
        self._cursor = updates.cursor

    def evict(self, replica_id: str) -> None:
        """Send nothing more to a replica that was seen dead, until it restarts, or registers anew after the directory
        has removed it: tell the directory, too."""
        self._fleet.evict(replica_id)

    def release(self, uid: str) -> None:
        """End what `choose` reserved: call it on every path on which a request ends. Harmless when it has ended."""
        self._fleet.release(uid)

    def choose(self, request: PlacementRequest) -> Placement | Refusal:
        """Pick a verifier and a drafter, and reserve them."""
        outcome = self._choose(request)
        if isinstance(outcome, Refusal) and request.substitute is not None:
            return self._choose(replace(request, fingerprints=request.substitute))
        return outcome

    def _choose(self, request: PlacementRequest) -> Placement | Refusal:
        verifiers = self._fleet.verifiers
        pages = self._fleet.verifier_keys.deepest(request.keys, self._config.max_candidates)
        found = [verifiers[name] for name in pages if self._accepts(verifiers[name], request)]
        others = self._fleet.least_loaded(
            request.fingerprints,
            self._config.num_least_loaded,
            lambda v: v.record.replica_id not in pages and self._accepts(v, request),
        )
        candidates = [
            self._candidate(request, verifier, pages.get(verifier.record.replica_id, 0))
            for verifier in (*found, *others)
        ]
        if not candidates:
            return Refusal(request.uid, self._why_not(request))
        picked = self._pick(request, candidates)
        longest = max(pages.values(), default=0)
        return self._reserve(request, picked, longest * PAGE_TOKENS)

    def _accepts(self, verifier: Verifier, request: PlacementRequest) -> bool:
        record = verifier.record
        return (
            verifier.is_routable
            and record.replica_id not in request.exclude
            and record.fingerprints.fits_request(request.fingerprints)
        )

    def _candidate(
        self, request: PlacementRequest, verifier: Verifier, num_pages: int
    ) -> tuple[float, int, Verifier]:
        """(cost without the drafter's part, cached tokens, verifier)."""
        cached = min(num_pages * PAGE_TOKENS, request.num_prompt_tokens - 1)
        cost_s = verifier.standing_cost_s + (request.num_prompt_tokens - cached) * verifier.miss_token_s
        return cost_s, cached, verifier

    def _pick(self, request: PlacementRequest, candidates: list[tuple[float, int, Verifier]]) -> _Pair:
        """The cheapest pair, or one that costs hardly more. Drafters are looked at only where they can decide it."""
        candidates.sort(key=lambda candidate: candidate[0])
        pairs: list[_Pair] = []
        limit_s = inf
        for cost_s, cached_tokens, verifier in candidates:
            if cost_s > limit_s:
                break
            pair = self._pair(request, verifier, cached_tokens, cost_s)
            pairs.append(pair)
            limit_s = min(limit_s, pair.cost_s + self._config.tie_s)
        return self._random.choice([pair for pair in pairs if pair.cost_s <= limit_s])

    def _pair(
        self, request: PlacementRequest, verifier: Verifier, cached_tokens: int, cost_s: float
    ) -> _Pair:
        if not verifier.wants_drafter:
            return _Pair(verifier, cached_tokens, None, 0, cost_s)
        num_tokens = request.num_prompt_tokens
        token_s = self._config.draft_miss_ratio / prefill_rate(verifier.load, self._config)
        best: Drafter | None = None
        best_s, best_cached = num_tokens * token_s, 0
        for drafter in self._fleet.local_drafters(verifier):
            name = drafter.record.replica_id
            if name in request.exclude:
                continue
            num_pages = self._fleet.drafter_keys.depth(name, request.draft_keys)
            draft_cached = min(num_pages * PAGE_TOKENS, num_tokens - 1)
            drafter_s = (num_tokens - draft_cached) * token_s
            drafter_s += drafter.num_requests * self._config.draft_request_s
            if best is None or drafter_s < best_s:
                best, best_s, best_cached = drafter, drafter_s, draft_cached
        return _Pair(verifier, cached_tokens, best, best_cached, cost_s + best_s)

    def _reserve(self, request: PlacementRequest, picked: _Pair, longest_tokens: int) -> Placement:
        verifier, drafter = picked.verifier, picked.drafter
        endpoints: tuple[str, ...] = ()
        if drafter is not None:
            endpoints = drafter.record.local_endpoints
        elif verifier.wants_drafter:
            drafter = self._fleet.remote_drafter(
                verifier, lambda d: d.record.replica_id not in request.exclude
            )
            endpoints = drafter.record.remote_endpoints if drafter is not None else ()
        longest_tokens = min(longest_tokens, request.num_prompt_tokens - 1)
        if longest_tokens == 0:
            reason = Reason.LEAST_LOADED
        else:
            reason = Reason.PREFIX if picked.cached_tokens == longest_tokens else Reason.DIVERTED
        wait_s = (verifier.load.queued_tokens + verifier.reserved_tokens) / prefill_rate(
            verifier.load, self._config
        )
        self._fleet.reserve(request.uid, verifier, drafter, request.num_prompt_tokens - picked.cached_tokens)
        return Placement(
            uid=request.uid,
            verifier_id=verifier.record.replica_id,
            fingerprints=verifier.record.fingerprints,
            drafter_id=drafter.record.replica_id if drafter is not None else None,
            drafter_endpoints=endpoints,
            cached_tokens=picked.cached_tokens,
            draft_cached_tokens=picked.draft_cached_tokens,
            is_colocated=picked.drafter is not None,
            wait_s=wait_s,
            reason=reason,
        )

    def _why_not(self, request: PlacementRequest) -> RefusalReason:
        """The last filter that left nobody."""
        left = list(self._fleet.verifiers.values())
        filters: list[tuple[RefusalReason, Callable[[Verifier], bool]]] = [
            (RefusalReason.NO_VERIFIER, lambda v: True),
            (RefusalReason.NO_FIT, lambda v: v.record.fingerprints.fits_request(request.fingerprints)),
            (RefusalReason.EXCLUDED, lambda v: v.record.replica_id not in request.exclude),
            (RefusalReason.DRAINING, lambda v: not v.load.is_draining),
        ]
        for reason, passes in filters:
            left = [verifier for verifier in left if passes(verifier)]
            if not left:
                return reason
        return RefusalReason.NO_ROOM
