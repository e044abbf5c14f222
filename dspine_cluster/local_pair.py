"""A verifier and its drafter in one process, for the command line, benchmarks and tests."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from dspine_cluster.config import DrafterServiceConfig, VerifierConfig
from dspine_cluster.drafter.service import DrafterService
from dspine_cluster.errors import ChannelError
from dspine_cluster.observability.tracing import NO_TRACING, Tracing
from dspine_cluster.verifier.service import VerifierService

_CONNECT_TIMEOUT_S = 30.0


@contextmanager
def local_pair(config: VerifierConfig, tracing: Tracing = NO_TRACING) -> Iterator[VerifierService]:
    """Run both services over a Unix socket, as two replicas on one node would; `none` runs no drafter.

    Raises:
        ConfigError, CheckpointError, MismatchError: the models cannot be served as configured.
    """
    config = replace(config, secret=secrets.token_hex(16))
    verifier = VerifierService(config, tracing=tracing)
    with ExitStack() as running:
        endpoints: list[str] = []
        if config.drafter.name != "none":
            folder = running.enter_context(tempfile.TemporaryDirectory(prefix="dspine-"))
            drafter = DrafterService.load(drafter_config(config, f"unix:{folder}/drafter.sock"))
            drafter.start()
            running.callback(drafter.stop)
            endpoints = drafter.endpoints
        verifier.start()
        running.callback(verifier.stop)
        if endpoints:
            verifier.set_drafter_endpoints(endpoints)
            await_connection(verifier)
        yield verifier


def drafter_config(config: VerifierConfig, endpoint: str) -> DrafterServiceConfig:
    """A drafter replica for the verifiers that `config` describes."""
    return DrafterServiceConfig(
        target=config.target,
        drafter=config.drafter,
        endpoints=(endpoint,),
        secret=config.secret,
        dtype=config.engine.dtype,
        device=config.engine.device,
        max_context_tokens=config.engine.max_model_len_tokens,
        paced_by=config.engine.paced_by,
        pool_tokens=config.engine.pool_tokens,
    )


def await_connection(verifier: VerifierService) -> None:
    """Return when the verifier is connected to a drafter.

    Raises:
        ChannelError: it was not in time.
    """
    deadline_s = time.monotonic() + _CONNECT_TIMEOUT_S
    while verifier.stats()["connected_drafters"] < 1:
        if time.monotonic() > deadline_s:
            raise ChannelError(f"no channel between verifier and drafter after {_CONNECT_TIMEOUT_S:.0f} s")
        time.sleep(0.01)
