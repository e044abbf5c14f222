"""How ingresses and verifiers follow the directory. Both go on with what they know without it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NoReturn

from ray.serve.handle import DeploymentHandle

from dspine_cluster.core.cluster_records import ClusterUpdates, Cursor, Fingerprints
from dspine_serve.calls import within
from dspine_serve.logs import Outage

_logger = logging.getLogger(__name__)

WAIT_S = 1.0
"""How long the directory keeps a call that it has nothing to say to."""
_ANSWER_TIMEOUT_S = 2.0
"""How much longer the answer may take."""
_RETRY_S = 0.5


class Follower:
    """Keeps the picture of whoever places requests as fresh as the directory's."""

    def __init__(
        self, directory: DeploymentHandle, apply: Callable[[ClusterUpdates], None], pause_s: float = 0.05
    ) -> None:
        """`apply` is called in the event loop with what the directory tells, in order. Calls are `pause_s` apart, so
        that what happens meanwhile comes in one answer."""
        self._directory = directory.options(_by_reference=False)
        self._apply = apply
        self._pause_s = pause_s
        self._cursor = Cursor()

    async def run(self) -> NoReturn:
        """Follow until cancelled."""
        outage = _outage()
        while True:
            await _try(self._follow, outage)
            await asyncio.sleep(self._pause_s)

    async def _follow(self) -> None:
        call = self._directory.updates.remote(self._cursor, WAIT_S)
        updates: ClusterUpdates = await within(WAIT_S + _ANSWER_TIMEOUT_S, call)
        self._apply(updates)
        self._cursor = updates.cursor


async def follow_drafters(
    directory: DeploymentHandle,
    node_id: str,
    fingerprints: Fingerprints,
    use: Callable[[list[str]], None],
    pause_s: float = 0.05,
) -> NoReturn:
    """Tells `use` the endpoints of the drafters for a verifier on `node_id`, whenever they change, until cancelled."""
    directory = directory.options(_by_reference=False)
    known: tuple[str, ...] = ()

    async def follow() -> None:
        nonlocal known
        call = directory.choose_drafters.remote(node_id, fingerprints, known, WAIT_S)
        choice = await within(WAIT_S + _ANSWER_TIMEOUT_S, call)
        endpoints = choice.merged_with(known)
        if endpoints != known:
            use(list(endpoints))
            known = endpoints

    outage = _outage()
    while True:
        await _try(follow, outage)
        await asyncio.sleep(pause_s)


def _outage() -> Outage:
    return Outage(_logger, "the directory does not answer, the picture stays as it is")


async def _try(step: Callable[[], Awaitable[None]], outage: Outage) -> None:
    try:
        await step()
    except Exception as error:
        outage.lasts(error)
        await asyncio.sleep(_RETRY_S)
    else:
        outage.is_over()
