"""Manifests that fit their schemas are still refused, or lead nowhere, for other reasons."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.k8s.api_rules import problems
from tests.k8s.conftest import render

GROUP = ("spec", "rayClusterConfig", "workerGroupSpecs", 0)
POD = (*GROUP, "template", "spec")
CONTAINER = (*POD, "containers", 0)
STATEFUL = ("spec", "template", "spec", "containers", 0)
BROKEN: list[tuple[str, tuple[str | int, ...], Any, str]] = [
    ("Service", ("metadata", "name"), "Bad Value!", "cannot be named"),
    ("StatefulSet", ("metadata", "namespace"), "other", "is not in the namespace"),
    ("PriorityClass", ("value",), 2**40, "out of range"),
    ("RayService", (*GROUP, "replicas"), 9, "minReplicas to maxReplicas"),
    ("RayService", (*GROUP, "groupName"), "GPU group", "name of a group"),
    ("RayService", (*GROUP, "template", "metadata", "labels", "app"), "no label!", "is no label"),
    ("RayService", (*POD, "nodeSelector"), {}, "selects everything"),
    ("RayService", (*CONTAINER, "image"), "dspine", "no image with a tag"),
    ("RayService", (*CONTAINER, "ports", 1, "containerPort"), 8000, "8000 is there twice"),
    ("RayService", (*CONTAINER, "ports", 1, "name"), "serve", "'serve' is there twice"),
    ("RayService", (*CONTAINER, "ports", 1, "name"), "a-very-long-metrics-port", "is no name"),
    ("RayService", (*CONTAINER, "volumeMounts", 1, "mountPath"), "/models", "'/models' is there twice"),
    ("RayService", (*CONTAINER, "resources", "limits", "memory"), "128Gi", "within a limit"),
    ("RayService", (*CONTAINER, "resources", "limits", "memory"), "256Gb", "no quantity"),
    ("RayService", (*CONTAINER, "resources", "limits", "nvidia.com/gpu"), "9", "within a limit"),
    ("RayService", (*CONTAINER, "resources", "limits"), {"memory": "256Gi"}, "needs a limit"),
    ("StatefulSet", (*STATEFUL, "ports", 0, "containerPort"), 106379, "is no port"),
    ("StatefulSet", (*STATEFUL, "env", 0, "name"), "no name", "is no name"),
    ("PersistentVolumeClaim", ("spec", "resources", "requests", "storage"), "200 GB", "no quantity"),
    ("PodMonitor", ("spec", "podMetricsEndpoints", 0, "interval"), "10 s", "no duration"),
    ("PodDisruptionBudget", ("spec", "selector", "matchLabels"), {}, "selects everything"),
]


def test_nothing_that_is_sent_breaks_a_rule(objects: list[dict[str, Any]]) -> None:
    assert problems(objects) == []


@pytest.fixture(scope="module")
def shipped() -> str:
    return json.dumps(render("gpu-multi-node"))


@pytest.mark.parametrize(("kind", "path", "value", "problem"), BROKEN)
def test_a_broken_rule_is_told(
    shipped: str, kind: str, path: tuple[str | int, ...], value: Any, problem: str
) -> None:
    objects = json.loads(shipped)
    parent = next(item for item in objects if item["kind"] == kind)
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    assert any(problem in line for line in problems(objects)), problems(objects)
