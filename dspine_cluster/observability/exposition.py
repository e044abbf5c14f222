"""Figures of replicas in Prometheus' text format."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from dspine_cluster.observability.catalogue import (
    METRIC_OF_FIGURE,
    METRICS,
    PREFIX,
    SOURCE_LABELS,
    Kind,
    Metric,
)
from dspine_cluster.observability.series import parse_series

CONTENT_TYPE = CONTENT_TYPE_LATEST


@dataclass(frozen=True, slots=True)
class ReplicaFigures:
    """What one replica tells."""

    replica_id: str
    model: str
    figures: Mapping[str, float]


def exposition(replicas: Iterable[ReplicaFigures]) -> bytes:
    """Figures that the catalogue does not have are left out: an update's new replicas may tell of more."""
    return generate_latest(_Families(replicas))


class _Families(Collector):
    def __init__(self, replicas: Iterable[ReplicaFigures]) -> None:
        self._samples: defaultdict[Metric, list[tuple[str, dict[str, str], float]]] = defaultdict(list)
        for replica in replicas:
            source = dict(zip(SOURCE_LABELS, (replica.replica_id, replica.model), strict=True))
            for figure, value in replica.figures.items():
                name, labels = parse_series(figure)
                if name in METRIC_OF_FIGURE:
                    own = (PREFIX + name, source | dict(labels), value)
                    self._samples[METRIC_OF_FIGURE[name]].append(own)

    def collect(self) -> Iterator[Family]:
        for metric in METRICS:
            if metric in self._samples:
                name = metric.name.removesuffix("_total") if metric.kind is Kind.COUNTER else metric.name
                family = Family(name, metric.help, metric.kind.value)
                for sample in self._samples[metric]:
                    family.add_sample(*sample)
                yield family
