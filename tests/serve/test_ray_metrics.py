from __future__ import annotations

from typing import Any

import pytest

from dspine_cluster.api.guarding.admission import Admission
from dspine_cluster.observability.catalogue import INGRESS, METRIC_OF_FIGURE
from dspine_cluster.observability.histogram import Histogram
from dspine_cluster.observability.series import parse_series
from dspine_serve import ray_metrics
from dspine_serve.placing import Placing
from dspine_serve.ray_metrics import RayMetrics


class Instrument:
    """Behaves like one of Ray's: a counter takes what is added, more than nothing, a gauge takes its value."""

    values: dict[tuple[str, ...], float]

    def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
        assert description
        self._name, self._tag_keys, self._default_tags = name, tag_keys, dict[str, str]()

    def set_default_tags(self, tags: dict[str, str]) -> None:
        self._default_tags = tags

    def _key(self, tags: dict[str, str]) -> tuple[str, ...]:
        all_tags = self._default_tags | tags
        assert set(all_tags) == set(self._tag_keys)
        return (self._name, *(all_tags[key] for key in self._tag_keys))

    def inc(self, value: float, tags: dict[str, str]) -> None:
        assert value > 0
        self.values[self._key(tags)] = self.values.get(self._key(tags), 0) + value

    def set(self, value: float, tags: dict[str, str]) -> None:
        self.values[self._key(tags)] = value


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, ...], float]:
    """What Ray has been told, by name and tags."""
    Instrument.values = {}

    def refuse(*_args: Any) -> None:
        raise AssertionError

    for name, wrong in (("Counter", "set"), ("Gauge", "inc")):
        monkeypatch.setattr(ray_metrics, name, type(name, (Instrument,), {wrong: refuse}))
    return Instrument.values


def test_counters_are_told_what_was_added_and_gauges_what_is(exported: dict[tuple[str, ...], float]) -> None:
    metrics = RayMetrics("r", "m")
    for rounds, running in ((3, 2), (3, 2), (7, 1)):
        metrics.export({"rounds_total": rounds, "running_requests": running})
        assert exported == {
            ("dspine_rounds_total", "r", "m"): rounds,
            ("dspine_running_requests", "r", "m"): running,
        }


def test_what_is_counted_apart_is_told_apart(exported: dict[tuple[str, ...], float]) -> None:
    metrics = RayMetrics("r", "m")
    for late in (1, 4):
        metrics.export({"draft_fallback_total{reason=late}": late, "draft_fallback_total{reason=busy}": 2})
    name = "dspine_draft_fallback_total"
    assert exported == {(name, "r", "m", "late"): 4, (name, "r", "m", "busy"): 2}


def test_histograms_have_their_usual_series(exported: dict[tuple[str, ...], float]) -> None:
    histogram = Histogram((0.5,))
    histogram.note(0.25, 3)
    histogram.note(2.0)
    RayMetrics("r", "m").export(histogram.figures("round_seconds", {"phase": "verify"}))
    name = "dspine_round_seconds"
    assert exported == {
        (f"{name}_bucket", "r", "m", "verify", "0.5"): 3,
        (f"{name}_bucket", "r", "m", "verify", "+Inf"): 4,
        (f"{name}_sum", "r", "m", "verify"): 2.75,
        (f"{name}_count", "r", "m", "verify"): 4,
    }


def test_every_figure_of_an_ingress_stands_in_the_catalogue() -> None:
    figures = Placing(report_dead=lambda _id: None).stats() | Admission(1, 1).stats()
    for figure in figures:
        assert METRIC_OF_FIGURE[parse_series(figure)[0]] in INGRESS
