"""Generation on verifier replicas, as the HTTP interface wants it."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from grpc.aio import AioRpcError
from ray.exceptions import RayActorError, RayError
from ray.serve.exceptions import (
    BackPressureError,
    DeploymentUnavailableError,
    RayServeException,
    ReplicaUnavailableError,
    RequestCancelledError,
)
from ray.serve.handle import DeploymentHandle

from dspine_cluster.errors import DspineError, EngineStoppedError, OverloadedError
from dspine_cluster.types import GenerateRequest, RoundOutput
from dspine_serve.calls import within

_HEALTH_TIMEOUT_S = 2.0
_RETRY_AFTER_S = 2.0
_LOST_REPLICA = (
    RayActorError,
    DeploymentUnavailableError,
    ReplicaUnavailableError,
    RequestCancelledError,
    AioRpcError,
)


class ServeGenerator:
    """Sends each request to a verifier replica; after that only its output stream crosses a Serve handle."""

    def __init__(self, verifier: DeploymentHandle) -> None:
        self._verifier = verifier
        # By value: three to four times cheaper per item than references into the object store.
        self._streams = verifier.options(method_name="generate", stream=True, _by_reference=False)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[RoundOutput, None]:
        """One item a round.

        Raises:
            RequestError, OverloadedError, EngineStoppedError: as the verifier did, or because none can take it.
        """
        outputs = self._streams.remote(request)
        try:
            async for output in outputs:
                if isinstance(output, DspineError):
                    raise output
                yield output
        except BackPressureError as error:
            retry_after_s = error.retry_after_s or _RETRY_AFTER_S
            raise OverloadedError("too many requests are waiting", retry_after_s=retry_after_s) from error
        except _LOST_REPLICA as error:
            raise EngineStoppedError(
                "the replica that was generating is gone; send the request again"
            ) from error
        finally:
            outputs.cancel()

    async def check_health(self) -> None:
        """Raises EngineStoppedError when no verifier replica answers."""
        try:
            await within(_HEALTH_TIMEOUT_S, self._verifier.check_health.remote())
        except (RayError, RayServeException, AioRpcError, TimeoutError) as error:
            raise EngineStoppedError("no verifier replica answers") from error
