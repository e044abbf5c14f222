"""Generation on verifier replicas, as the HTTP interface wants it: placed, and resumed elsewhere when one is lost."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, aclosing
from dataclasses import replace
from itertools import count
from typing import Any

from grpc.aio import AioRpcError
from ray.exceptions import ActorDiedError, RayActorError, RayError
from ray.serve.exceptions import (
    BackPressureError,
    DeploymentUnavailableError,
    RayServeException,
    ReplicaUnavailableError,
    RequestCancelledError,
)
from ray.serve.handle import DeploymentHandle

from dspine_cluster.core.cluster_records import Fingerprints
from dspine_cluster.core.placement import PlacementRequest
from dspine_cluster.errors import DspineError, EngineStoppedError, OverloadedError
from dspine_cluster.observability.tracing import NO_TRACING, Attributes, Span, Tracing
from dspine_cluster.types import GenerateRequest, RoundOutput
from dspine_serve.calls import within
from dspine_serve.choices import Choices
from dspine_serve.pins import OtherModelsError, PinRefusal, PinRefusedError
from dspine_serve.placing import Place, Placing, RefusedError
from dspine_serve.progress import Progress
from dspine_serve.prompt_keys import KeyMaker
from dspine_serve.round_items import unpack_rounds

_logger = logging.getLogger(__name__)

_HEALTH_TIMEOUT_S = 2.0
_RESERVE_TIMEOUT_S = 5.0
"""A replica that has not given a slot by then hangs."""
_RETRY_AFTER_S = 2.0
_MAX_RESUMES = 2
_LOST = (
    RayActorError,
    DeploymentUnavailableError,
    ReplicaUnavailableError,
    RequestCancelledError,
    AioRpcError,
    TimeoutError,
)


class _LostError(Exception):
    """The replica that was generating is gone."""


class ServeGenerator:
    """Sends each request to the verifier that placement chooses; after that only its output stream crosses a handle."""

    def __init__(
        self,
        verifier: DeploymentHandle,
        placing: Placing,
        key_maker: KeyMaker,
        tracing: Tracing = NO_TRACING,
    ) -> None:
        self._verifier = verifier
        # By value: three to four times cheaper per item than references into the object store.
        self._streams = verifier.options(method_name="generate", stream=True, _by_reference=False)
        self._placing = placing
        self._key_maker = key_maker
        self._tracing = tracing
        self._models = key_maker.models
        # An update that replaces the target has verifiers of both for a while; what has not begun may have either.
        self._substitute = Fingerprints(tokenizer=self._models.tokenizer)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[RoundOutput, None]:
        """One item a round. When the replica is lost, another with the same target goes on with what the caller has
        already got; greedy and seeded texts are the same as without the loss.

        Raises:
            RequestError, OverloadedError: as the verifier did, or because none has room.
            EngineStoppedError: no verifier can take it, or too many were lost.
        """
        progress = Progress(request)
        uids = (f"{request.request_id}.{number}" for number in count())
        for num_resumes in count():
            try:
                choices = Choices(self._placing, is_resumed=num_resumes > 0)
                async with aclosing(self._attempt(progress, uids, choices)) as batches:
                    async for outputs in batches:
                        for output in outputs:
                            yield progress.add(output)
                return
            except _LostError as error:
                if progress.has_ended:
                    return
                if num_resumes == _MAX_RESUMES:
                    self._placing.counts["lost_streams_total"] += 1
                    raise EngineStoppedError(
                        "the replicas that were generating are gone; send the request again"
                    ) from error
                self._placing.counts["resumed_streams_total"] += 1
                _logger.warning("%s is resumed elsewhere: %s", request.request_id, error)
            except DspineError:
                if num_resumes > 0:
                    self._placing.counts["lost_streams_total"] += 1
                raise

    async def check_health(self) -> None:
        """Raises EngineStoppedError when no verifier replica lives. One that the directory hears of lives, however
        busy it is; without the directory one has to answer."""
        if self._placing.knows_verifiers:
            return
        try:
            await within(_HEALTH_TIMEOUT_S, self._verifier.check_health.remote())
        except (RayError, RayServeException, AioRpcError, TimeoutError) as error:
            raise EngineStoppedError("no verifier replica answers") from error

    async def check_ready(self) -> None:
        """Raises EngineStoppedError, or OverloadedError where all that live are full, when no verifier takes
        a request."""
        if not self._placing.has_room:
            await self.check_health()
            if self._placing.knows_verifiers:
                raise OverloadedError("all replicas have as many requests as they take")

    async def _attempt(
        self, progress: Progress, uids: Iterator[str], choices: Choices
    ) -> AsyncGenerator[list[RoundOutput], None]:
        """The outputs of one verifier, the first that takes the request, as they come: several of a stream that is
        faster than its items.

        Raises:
            _LostError: the verifier was lost.
        """
        request = progress.begin()
        keys = await self._key_maker.keys_of(request)
        num_tokens = len(request.prompt_ids) + len(request.forced_output_ids)
        while True:
            uid = next(uids)
            wanted = PlacementRequest(
                uid=uid,
                num_prompt_tokens=num_tokens,
                keys=keys.verifier,
                draft_keys=keys.draft,
                fingerprints=progress.models or self._models,
                substitute=self._substitute if progress.models is None else None,
                exclude=choices.exclude,
            )
            try:
                with self._placing.place(wanted) as place, self._traced(request, uid, place) as span:
                    placed = replace(
                        request,
                        request_id=uid,
                        preferred_drafter=place.drafter_endpoints,
                        traceparent=span.traceparent,
                    )
                    async with aclosing(self._call(place, placed, span)) as batches:
                        async for outputs in batches:
                            progress.models = place.models
                            yield outputs
                return
            except RefusedError as error:
                _logger.debug("%s is refused: %s", uid, error)
                await choices.after(error)

    def _traced(self, request: GenerateRequest, uid: str, place: Place) -> AbstractContextManager[Span]:
        """The span of what one verifier does for the request."""
        attributes: Attributes = {
            "dspine.request.id": uid,
            "dspine.verifier.id": place.pin.replica_id,
            "dspine.forced_tokens": len(request.forced_output_ids),
        }
        return self._tracing.call("generate", request.traceparent, attributes)

    async def _call(
        self, place: Place, request: GenerateRequest, span: Span
    ) -> AsyncGenerator[list[RoundOutput], None]:
        async with AsyncExitStack() as stack:
            replica_id, items = await self._send(place, request, stack)
            span.note({"dspine.verifier.id": replica_id})
            has_ended = False
            try:
                while (item := await place.lifeline.wait(anext(items, None))) is not None:
                    if isinstance(item, DspineError):
                        raise self._refusal(replica_id, item)
                    outputs = unpack_rounds(item)
                    yield outputs
                    has_ended = outputs[-1].finish_reason is not None
            except _LOST as error:
                if isinstance(error, ActorDiedError):
                    self._placing.evict(replica_id)
                else:
                    self._placing.shun(replica_id)
                raise _LostError(f"{replica_id}: {error!r}") from error
            if not has_ended:
                raise _LostError(f"{replica_id}: the stream ended before the generation")

    def _refusal(self, replica_id: str, error: DspineError) -> Exception:
        """What an error that a verifier sends means here."""
        if isinstance(error, OverloadedError):
            return RefusedError(replica_id, str(error), is_full=True)
        if isinstance(error, OtherModelsError):
            return RefusedError(replica_id, str(error))
        if isinstance(error, EngineStoppedError):
            self._placing.shun(replica_id)
            return _LostError(f"{replica_id}: {error}")
        return error

    async def _send(
        self, place: Place, request: GenerateRequest, stack: AsyncExitStack
    ) -> tuple[str, AsyncIterator[Any]]:
        """The replica that takes the request, and its outputs; leaving `stack` ends the call on every path."""
        wanted = place.pin.replica_id
        try:
            entering = stack.enter_async_context(self._streams.choose_replica(place.pin))
            selection = await place.lifeline.wait(entering, _RESERVE_TIMEOUT_S)
        except PinRefusedError as error:
            if error.reason is PinRefusal.DEAD:
                self._placing.evict(error.replica_id)
            elif error.reason is not PinRefusal.FULL:
                self._placing.shun(error.replica_id)
            is_full = error.reason is PinRefusal.FULL
            raise RefusedError(error.replica_id, error.reason, is_full=is_full) from error
        except BackPressureError as error:
            retry_after_s = error.retry_after_s or _RETRY_AFTER_S
            raise OverloadedError("too many requests are waiting", retry_after_s=retry_after_s) from error
        except _LOST as error:
            self._placing.shun(wanted)
            raise RefusedError(wanted, repr(error)) from error
        self._placing.watch(place, selection.replica_id)
        outputs = self._streams.dispatch(selection, request, place.models)
        stack.callback(outputs.cancel)
        return selection.replica_id, outputs
