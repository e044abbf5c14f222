"""Exports a replica's figures through Ray's metrics agents, which Prometheus scrapes on every node."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from ray.util.metrics import Counter, Gauge

from dspine_cluster.observability.catalogue import METRIC_OF_FIGURE, PREFIX, SOURCE_LABELS, Kind
from dspine_cluster.observability.series import parse_series
from dspine_serve.logs import Outage

_logger = logging.getLogger(__name__)

_PERIOD_S = 1.0


class RayMetrics:
    """Ray's counters take what is added, so each total is remembered. Ray's histograms take single observations, and
    lose their sum on the way to Prometheus; what is counted in buckets is exported exactly, under a histogram's usual
    names, as gauges: those of counters would get an ending."""

    def __init__(self, replica_id: str, model: str) -> None:
        self._source = dict(zip(SOURCE_LABELS, (replica_id, model), strict=True))
        self._instruments: dict[str, Any] = {}
        self._totals: dict[str, float] = {}

    def export(self, figures: Mapping[str, float]) -> None:
        """Tell Ray what the figures are now; those that the catalogue does not have are a bug."""
        for figure, value in figures.items():
            name, labels = parse_series(figure)
            instrument, tags = self._instrument(name), dict(labels)
            if METRIC_OF_FIGURE[name].kind is not Kind.COUNTER:
                instrument.set(value, tags)
            elif (added := value - self._totals.get(figure, 0.0)) > 0.0:
                instrument.inc(added, tags)
                self._totals[figure] = value

    def _instrument(self, name: str) -> Any:
        if name not in self._instruments:
            metric = METRIC_OF_FIGURE[name]
            buckets = ("le",) if name.endswith("_bucket") else ()
            kind = Counter if metric.kind is Kind.COUNTER else Gauge
            instrument = kind(PREFIX + name, metric.help, (*SOURCE_LABELS, *metric.labels, *buckets))
            instrument.set_default_tags(self._source)
            self._instruments[name] = instrument
        return self._instruments[name]


async def export_metrics(replica_id: str, model: str, figures: Callable[[], Mapping[str, float]]) -> NoReturn:
    """Exports every second until cancelled. Gauges are told again even when nothing has changed: Ray forgets them."""
    metrics = RayMetrics(replica_id, model)
    outage = Outage(_logger, "metrics cannot be exported")
    while True:
        await asyncio.sleep(_PERIOD_S)
        try:
            metrics.export(figures())
            outage.is_over()
        except Exception as error:
            outage.lasts(error)
