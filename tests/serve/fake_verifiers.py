"""Verifier replicas of this process, behind a handle that behaves like Serve's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from ray.exceptions import ActorDiedError, ActorUnavailableError

from dspine_cluster.core.cluster_records import (
    ClusterEvent,
    ClusterUpdates,
    Cursor,
    DrafterRecord,
    Fingerprints,
    Removal,
    Roster,
    VerifierRecord,
)
from dspine_cluster.errors import DspineError
from dspine_cluster.types import FinishReason, GenerateRequest, RoundOutput, Usage
from dspine_serve.pins import OtherModelsError, Pin, PinRefusal, PinRefusedError
from dspine_serve.placing import Placing
from dspine_serve.round_items import pack_rounds

MODELS = Fingerprints("target", "drafter", "tokenizer")
TOKENS_PER_ROUND = 2


def text_of(token_ids: tuple[int, ...]) -> str:
    return "".join(chr(97 + token % 26) for token in token_ids)


def token_at(position: int, models: Fingerprints = MODELS) -> int:
    """What every replica with the same target generates at an output position."""
    return (position * 7 + 3 + len(models.target)) % 100


@dataclass(eq=False)
class FakeVerifier:
    """One round gives two tokens. It can be told to fail."""

    replica_id: str
    models: Fingerprints = MODELS
    max_calls: int = 100
    is_known: bool = True
    """To Serve."""
    is_dead: bool = False
    is_unavailable: bool = False
    """Its connection breaks with the next round, and is there again afterwards."""
    hangs: bool = False
    refuses_with: DspineError | None = None
    stops_after: int | None = None
    """Rounds until it hangs."""
    num_calls: int = 0
    """Slots that are taken."""
    requests: list[GenerateRequest] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def kill(self) -> None:
        self.is_dead = True
        self.ended.set()

    async def generate(
        self, request: GenerateRequest, wanted: Fingerprints = MODELS
    ) -> AsyncGenerator[bytes | DspineError, None]:
        if not self.models.fits_request(wanted):
            yield OtherModelsError("others")
            return
        self.requests.append(request)
        if self.refuses_with is not None:
            yield self.refuses_with
            return
        usage = Usage(prompt_tokens=len(request.prompt_ids), cached_prompt_tokens=len(self.replica_id))
        position = len(request.forced_output_ids)
        while position < request.stop.max_tokens:
            if self.stops_after is not None and usage.num_rounds == self.stops_after:
                self.hangs = True
            if self.hangs:
                await self.ended.wait()
            await asyncio.sleep(0)
            if self.is_dead:
                raise ActorDiedError
            if self.is_unavailable:
                self.is_unavailable = False
                raise ActorUnavailableError("gone for a moment", None)
            end = min(position + TOKENS_PER_ROUND, request.stop.max_tokens)
            tokens = tuple(token_at(i, self.models) for i in range(position, end))
            position = end
            usage = Usage(
                prompt_tokens=usage.prompt_tokens,
                output_tokens=position,
                cached_prompt_tokens=usage.cached_prompt_tokens,
                num_rounds=usage.num_rounds + 1,
                proposed_tokens=usage.proposed_tokens + 5,
                verified_tokens=usage.verified_tokens + 4,
                accepted_tokens=usage.accepted_tokens + len(tokens) - 1,
            )
            reason = FinishReason.LENGTH if position == request.stop.max_tokens else None
            yield pack_rounds([RoundOutput(tokens, text_of(tokens), len(tokens) - 1, reason, usage)])


@dataclass
class Selection:
    replica_id: str
    verifier: FakeVerifier


class Call:
    """Iterates like the response of a streaming handle."""

    def __init__(self, items: AsyncGenerator[Any, None]) -> None:
        self._items = items
        self.is_cancelled = False

    def __aiter__(self) -> Call:
        return self

    async def __anext__(self) -> Any:
        return await anext(self._items)

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeHandle:
    """A handle to the verifiers' deployment."""

    def __init__(self, *verifiers: FakeVerifier) -> None:
        self.verifiers = {verifier.replica_id: verifier for verifier in verifiers}
        self.options_given: dict[str, Any] = {}
        self.calls: list[Call] = []
        self.pins: list[Pin] = []

    def options(self, **options: Any) -> FakeHandle:
        self.options_given = options
        return self

    @property
    def num_calls(self) -> int:
        return sum(verifier.num_calls for verifier in self.verifiers.values())

    @asynccontextmanager
    async def choose_replica(self, pin: Pin) -> AsyncIterator[Selection]:
        self.pins.append(pin)
        await asyncio.sleep(0)
        known = [v for v in self.verifiers.values() if v.is_known and v.replica_id not in pin.exclude]
        if pin.replica_id:
            known = [verifier for verifier in known if verifier.replica_id == pin.replica_id]
        if not known:
            raise PinRefusedError(pin.replica_id, PinRefusal.UNKNOWN)
        verifier = known[0]
        if verifier.hangs:
            await verifier.ended.wait()
        if verifier.is_dead:
            verifier.is_known = False
            raise PinRefusedError(verifier.replica_id, PinRefusal.DEAD)
        if verifier.num_calls >= verifier.max_calls:
            raise PinRefusedError(verifier.replica_id, PinRefusal.FULL)
        verifier.num_calls += 1
        try:
            yield Selection(verifier.replica_id, verifier)
        finally:
            verifier.num_calls -= 1

    def dispatch(self, selection: Selection, request: GenerateRequest, wanted: Fingerprints) -> Call:
        self.calls.append(Call(selection.verifier.generate(request, wanted)))
        return self.calls[-1]


class Picture:
    """Tells a `Placing` what a directory would."""

    def __init__(self, placing: Placing) -> None:
        self._placing = placing
        self._sequence = 0

    def tell(self, *events: ClusterEvent) -> None:
        self._sequence += len(events)
        self._placing.apply(ClusterUpdates(Cursor("epoch", self._sequence), events))

    def add(self, *replica_ids: str, models: Fingerprints = MODELS, max_requests: int = 100) -> None:
        """Verifiers, each on a node of its own with a drafter."""
        for name in replica_ids:
            self.tell(
                DrafterRecord(f"drafter-{name}", f"node-{name}", (f"unix:/{name}",), (), "1", models),
                VerifierRecord(name, f"node-{name}", "1", models, max_requests),
            )

    def remove(self, replica_id: str) -> None:
        self.tell(Removal(replica_id))

    def complete(self, *replica_ids: str) -> None:
        self.tell(Roster(frozenset(replica_ids)))
