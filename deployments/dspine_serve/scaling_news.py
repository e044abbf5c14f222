"""What autoscaling has decided, for metrics: through Ray's agents, and for ingresses through Ray's key-value store."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from typing import NoReturn

from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put
from ray.serve.config import AutoscalingContext

from dspine_cluster.api.metrics_route import AUTOSCALER_ID
from dspine_cluster.core.autoscaling import Decision
from dspine_cluster.core.autoscaling_config import AutoscalingConfig
from dspine_cluster.observability.series import series
from dspine_serve.logs import Outage
from dspine_serve.ray_metrics import RayMetrics
from dspine_serve.scaling_config import Role

_logger = logging.getLogger(__name__)

_NAMESPACE = b"dspine_autoscaling"
_PERIOD_S = 1.0


class ScalingNews:
    """Counts decisions. Telling costs the caller nothing but a thought: a thread of its own writes."""

    def __init__(self, write: Callable[[str, str, dict[str, float]], None] | None = None) -> None:
        """`write` takes an application, its model and the figures."""
        self._write = write or Writer().write
        self._counts: Counter[str] = Counter()
        self._queue: SimpleQueue[tuple[str, str, dict[str, float]]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def tell(
        self,
        model: str,
        shown: Mapping[Role, AutoscalingContext],
        before: Mapping[Role, int],
        after: Mapping[Role, int],
        decision: Decision,
        config: AutoscalingConfig,
    ) -> None:
        """A decision was taken about the deployments `shown`."""
        whys = {Role.VERIFIER: decision.verifiers_why, Role.DRAFTER: decision.drafters_why}
        figures: dict[str, float] = {}
        for role in shown:
            label = {"deployment": role.value}
            reason = {"reason": whys[role].value.replace(" ", "_")}
            self._counts[series("autoscaling_decisions_total", label | reason)] += 1
            for direction, added in (
                ("up", after[role] - before[role]),
                ("down", before[role] - after[role]),
            ):
                name = series("autoscaling_changes_total", label | {"direction": direction})
                self._counts[name] += max(0, added)
            figures[series("autoscaling_target_replicas", label)] = after[role]
        if Role.VERIFIER in shown:
            figures["autoscaling_asked_tokens_per_s"] = decision.state.demand.ahead(config.lead_s)
            figures["autoscaling_borne_tokens_per_s"] = decision.state.tokens_per_s
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="autoscaling-news", daemon=True)
            self._thread.start()
        app_name = next(iter(shown.values())).app_name
        self._queue.put((app_name or "", model, {**self._counts, **figures}))

    def _run(self) -> NoReturn:
        outage = Outage(_logger, "what autoscaling decides cannot be told")
        while True:
            news = self._queue.get()
            try:
                while True:
                    news = self._queue.get_nowait()  # only the newest counts
            except Empty:
                pass
            try:
                self._write(*news)
                outage.is_over()
            except Exception as error:
                outage.lasts(error)


class Writer:
    """Writes to Ray. For one thread."""

    def __init__(self) -> None:
        self._metrics: RayMetrics | None = None

    def write(self, app_name: str, model: str, figures: dict[str, float]) -> None:
        """Raises what Ray raises when it cannot be reached."""
        self._metrics = self._metrics or RayMetrics(AUTOSCALER_ID, model)
        self._metrics.export(figures)
        _internal_kv_put(_key(app_name), json.dumps(figures).encode(), overwrite=True, namespace=_NAMESPACE)


def read_news(app_name: str) -> dict[str, float]:
    """The figures that were told last; none before anything was decided. Waits for Ray's store."""
    value = _internal_kv_get(_key(app_name), namespace=_NAMESPACE)
    figures: dict[str, float] = json.loads(value) if value else {}
    return figures


async def follow_news(
    app_name: str,
    use: Callable[[dict[str, float]], None],
    read: Callable[[str], dict[str, float]] = read_news,
    period_s: float = _PERIOD_S,
) -> NoReturn:
    """Tells `use` the figures every second, until cancelled."""
    outage = Outage(_logger, "what autoscaling decides is not known")
    while True:
        try:
            use(await asyncio.to_thread(read, app_name))
            outage.is_over()
        except Exception as error:
            outage.lasts(error)
        await asyncio.sleep(period_s)


def _key(app_name: str) -> bytes:
    return app_name.encode()
