"""What a verifier tells autoscaling: made by the loop's thread when it is asked for, between two passes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

from dspine_cluster.core.autoscaling_report import encode_verifier
from dspine_cluster.core.autoscaling_stats import VerifierStats
from dspine_cluster.core.session import Session
from dspine_cluster.core.verifier_meter import PresentLoad, RoundTotals
from dspine_cluster.verifier.loop import VerifierLoop

_WAIT_S = 1.0


class CapacityReport:
    """Called in one event loop."""

    def __init__(self, loop: VerifierLoop, command: Callable[[Callable[[], None]], None]) -> None:
        """`command` has the loop's thread call something before its next pass."""
        self._loop = loop
        self._command = command
        self._told: VerifierStats | None = None
        self._told_at_s = 0.0

    async def take(self) -> dict[str, float]:
        """The figures by name; those told last, with their age, when a pass takes longer than anybody waits, and none
        before there are any."""
        made: Future[VerifierStats | None] = Future()

        def make() -> None:
            if made.set_running_or_notify_cancel():
                try:
                    made.set_result(verifier_stats(self._loop, time.monotonic()))
                except Exception as error:
                    made.set_exception(error)

        self._command(make)
        try:
            async with asyncio.timeout(_WAIT_S):
                self._told = await asyncio.wrap_future(made)
                self._told_at_s = time.monotonic()
        except TimeoutError:
            pass
        if self._told is None:
            return {}
        return encode_verifier(replace(self._told, age_s=time.monotonic() - self._told_at_s))


def verifier_stats(loop: VerifierLoop, now_s: float) -> VerifierStats | None:
    """The figures of a loop; for its thread."""
    metrics, streams, meter = loop.metrics, loop.streams, loop.meter
    load = loop.load()

    def left(session: Session) -> float:
        return meter.expected_left(session.num_output, session.remaining_output)

    present = PresentLoad(
        running_requests=load.running_requests,
        running_tokens=sum(map(left, streams.running)),
        waiting_tokens=sum(map(left, streams.waiting)),
        queued_prefill_tokens=load.queued_tokens,
        page_usage_ratio=metrics.page_usage_ratio,
        prefill_tokens_per_s=load.prefill_tokens_per_s,
        has_drafters=loop.drafters.num_connected > 0,
        wants_drafts=loop.policy.wants_drafts,
    )
    totals = RoundTotals(
        metrics.rounds_total, metrics.committed_tokens_total, metrics.draft_queue_seconds_total
    )
    return meter.stats(now_s, totals, present, loop.policy.estimate)
