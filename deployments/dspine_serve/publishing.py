"""How replicas tell the directory of themselves, for as long as they live."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from ray.serve.handle import DeploymentHandle

from dspine_cluster.core.cluster_records import ReplicaRecord, ReplicaReport
from dspine_cluster.core.cluster_view import DeltaReply
from dspine_cluster.core.delta_publisher import DeltaPublisher
from dspine_cluster.errors import EngineStoppedError
from dspine_serve.calls import within
from dspine_serve.logs import Outage

_logger = logging.getLogger(__name__)

_CALL_TIMEOUT_S = 2.0
_RETRY_S = 0.5
_QUIET_S = 0.5
"""A replica with nothing new says so this often: the directory forgets those that are silent."""


async def publish(
    directory: DeploymentHandle,
    record: ReplicaRecord,
    take_report: Callable[[], ReplicaReport],
    period_s: float = 0.1,
) -> None:
    """Tells the directory what changes on a replica, until cancelled or until the replica's engine has ended.

    `take_report` is called every `period_s`, and raises EngineStoppedError once the engine has ended. A directory that
    lost something, or is new, is told everything.
    """
    directory = directory.options(_by_reference=False)
    publisher = DeltaPublisher(record.replica_id, record.epoch)
    nothing_new: ReplicaReport | None = None
    told_at_s = 0.0
    outage = Outage(_logger, "the directory does not answer, it will hear of this replica later")
    while True:
        try:
            report = take_report()
            if report != nothing_new or time.monotonic() - told_at_s >= _QUIET_S:
                nothing_new = None
                delta = publisher.make_delta(
                    report.load, report.added, report.removed, report.admitted, report.news
                )
                reply = await within(_CALL_TIMEOUT_S, directory.push.remote(delta))
                if reply is DeltaReply.REGISTER:
                    await within(_CALL_TIMEOUT_S, directory.register.remote(record))
                if reply is DeltaReply.OK:
                    nothing_new, told_at_s = ReplicaReport(report.load), time.monotonic()
                else:
                    publisher.restart()
                outage.is_over()
        except EngineStoppedError as error:
            _logger.error("This replica is of no use any more, and taken out of the directory: %s", error)
            directory.remove.remote(record.replica_id)
            return
        except Exception as error:
            outage.lasts(error)
            publisher.restart()
            await asyncio.sleep(_RETRY_S)
        await asyncio.sleep(period_s)
