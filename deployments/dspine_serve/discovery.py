"""How drafters and verifiers find each other through the directory. Both go on with what they know without it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NoReturn

from ray.serve.handle import DeploymentHandle

from dspine_cluster.core.cluster_records import DrafterRecord
from dspine_serve.calls import within

_logger = logging.getLogger(__name__)
_CALL_TIMEOUT_S = 2.0


async def announce(directory: DeploymentHandle, record: DrafterRecord, period_s: float = 1.0) -> NoReturn:
    """Registers a drafter and keeps saying that it lives, until cancelled."""
    while True:
        try:
            if not await within(_CALL_TIMEOUT_S, directory.heartbeat.remote(record.replica_id)):
                await within(_CALL_TIMEOUT_S, directory.register.remote(record))
        except Exception as error:
            _logger.warning("The directory does not answer, it will hear of this drafter later: %s", error)
        await asyncio.sleep(period_s)


async def follow(
    directory: DeploymentHandle, node_id: str, use: Callable[[list[str]], None], period_s: float = 0.5
) -> NoReturn:
    """Tells `use` the drafter endpoints for a verifier on `node_id` whenever they change, until cancelled."""
    known: tuple[str, ...] = ()
    while True:
        try:
            choice = await within(_CALL_TIMEOUT_S, directory.choose_drafters.remote(node_id))
        except Exception as error:
            _logger.warning("The directory does not answer, drafters stay as they are: %s", error)
        else:
            endpoints = choice.merged_with(known)
            if endpoints != known:
                known = endpoints
                use(list(endpoints))
        await asyncio.sleep(period_s)
