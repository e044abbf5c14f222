"""The dashboard asks for nothing that is not exported."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dspine_cluster.observability.catalogue import METRIC_OF_FIGURE, PREFIX, SOURCE_LABELS, Kind

DASHBOARD = json.loads((Path(__file__).parents[2] / "k8s/base/dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
SELECTION = re.compile(rf"\b{PREFIX}(\w+)\{{([^}}]*)\}}(\[[^\]]*\])?")
GROUPING = re.compile(r"by \(([^)]*)\)")
_WORDS = {"sum", "max", "rate", "by", "histogram_quantile", "model"}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_panel_asks_only_for_metrics_that_are_exported(expression: str) -> None:
    selections = SELECTION.findall(expression)
    assert selections
    for figure, _, _ in selections:
        assert figure in METRIC_OF_FIGURE
    rest = SELECTION.sub("", expression)
    labels = {label for group in GROUPING.findall(rest) for label in group.split(", ")}
    assert set(re.findall(r"[a-z_]+", rest)) <= _WORDS | labels


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_what_grows_is_asked_for_its_rate_and_what_does_not_is_not(expression: str) -> None:
    for figure, _, window in SELECTION.findall(expression):
        is_gauge = METRIC_OF_FIGURE[figure].kind is Kind.GAUGE
        assert bool(window) != is_gauge, figure


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_series_are_grouped_by_labels_that_they_have(expression: str) -> None:
    labels = {label for group in GROUPING.findall(expression) for label in group.split(", ")}
    for figure, selector, _ in SELECTION.findall(expression):
        buckets = {"le"} if figure.endswith("_bucket") else set[str]()
        has = {*SOURCE_LABELS, *METRIC_OF_FIGURE[figure].labels, *buckets}
        assert labels <= has, figure
        assert buckets <= labels, "quantiles need the buckets apart"
        assert set(re.findall(r"(\w+)=", selector)) <= has


def test_panels_do_not_overlap() -> None:
    taken = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(taken) == len(set(taken))


def test_grafana_s_sidecar_finds_the_dashboard(objects: list[dict[str, Any]]) -> None:
    [config_map] = [
        item for item in objects if item["metadata"].get("labels", {}).get("grafana_dashboard") == "1"
    ]
    assert config_map["kind"] == "ConfigMap"
    assert json.loads(config_map["data"]["dspine.json"]) == DASHBOARD


def test_the_monitor_gives_metrics_the_names_that_the_dashboard_has(objects: list[dict[str, Any]]) -> None:
    [monitor] = [item for item in objects if item["kind"] == "PodMonitor"]
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    [rule] = endpoint["metricRelabelings"]
    pattern, replacement = re.compile(rule["regex"]), rule["replacement"].replace("$1", r"\1")
    assert rule["sourceLabels"] == [rule["targetLabel"]] == ["__name__"]
    assert pattern.sub(replacement, "ray_dspine_rounds_total") == "dspine_rounds_total"
    assert pattern.fullmatch("ray_node_cpu_count") is None
