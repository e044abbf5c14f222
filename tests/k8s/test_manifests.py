"""What `kubectl apply -k` sends is what Kubernetes, KubeRay, Ray and the application take."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.k8s.structural_schema import validate

SCHEMA = json.loads((Path(__file__).parent / "rayservice.v1.schema.json").read_text())
"""`openAPIV3Schema` of KubeRay's custom resource `rayservices.ray.io`, version v1 (Apache-2.0)."""
KUBERNETES_VERSION = "1.32"
MAX_DRAIN_S = 600

Service = dict[str, Any]


def _pods(service: Service) -> list[dict[str, Any]]:
    cluster = service["spec"]["rayClusterConfig"]
    return [group["template"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


def test_the_ray_service_fits_the_schema_of_its_custom_resource(ray_service: Service) -> None:
    validate(ray_service, SCHEMA)


@pytest.mark.parametrize("path", [("spec",), ("spec", "rayClusterConfig"), ("spec", "upgradeStrategy")])
def test_unknown_fields_of_a_ray_service_are_refused(ray_service: Service, path: tuple[str, ...]) -> None:
    changed = json.loads(json.dumps(ray_service))
    parent = changed
    for name in path:
        parent = parent[name]
    parent["unknown"] = 1
    with pytest.raises(jsonschema.ValidationError, match="unknown"):
        validate(changed, SCHEMA)


def test_kubernetes_knows_every_field_of_its_own_kinds(objects: list[Service]) -> None:
    of_kubernetes = [item for item in objects if item["kind"] not in ("RayService", "PodMonitor")]
    assert of_kubernetes
    for item in of_kubernetes:
        kubernetes_validate.validate(item, KUBERNETES_VERSION, strict=True)


def test_kubernetes_knows_every_field_of_the_pods(ray_service: Service) -> None:
    for template in _pods(ray_service):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ray"} | template["metadata"]}
        kubernetes_validate.validate(pod | {"spec": template["spec"]}, KUBERNETES_VERSION, strict=True)


@pytest.mark.parametrize("kind", ["PodDisruptionBudget", "NetworkPolicy", "StatefulSet"])
def test_unknown_fields_of_kubernetes_kinds_are_refused(objects: list[Service], kind: str) -> None:
    item = json.loads(json.dumps(next(item for item in objects if item["kind"] == kind)))
    item["spec"]["unknown"] = 1
    with pytest.raises(kubernetes_validate.ValidationError, match="unknown"):
        kubernetes_validate.validate(item, KUBERNETES_VERSION, strict=True)


def test_the_head_runs_no_replica_and_keeps_the_name_that_kuberay_gives_it(ray_service: Service) -> None:
    head = ray_service["spec"]["rayClusterConfig"]["headGroupSpec"]
    assert head["rayStartParams"]["num-cpus"] == "0"
    assert "headService" not in head


def test_workers_keep_the_probes_that_kuberay_gives_them(ray_service: Service) -> None:
    for group in ray_service["spec"]["rayClusterConfig"]["workerGroupSpecs"]:
        for container in group["template"]["spec"]["containers"]:
            assert not {"readinessProbe", "livenessProbe", "startupProbe"} & container.keys()


def test_pods_and_old_clusters_outlive_the_drain_of_their_streams(ray_service: Service) -> None:
    assert ray_service["spec"]["rayClusterDeletionDelaySeconds"] > MAX_DRAIN_S
    for template in _pods(ray_service):
        assert template["spec"]["terminationGracePeriodSeconds"] > MAX_DRAIN_S


def test_a_worker_with_gpus_holds_two_or_more_so_that_pairs_share_a_node(ray_service: Service) -> None:
    for group in ray_service["spec"]["rayClusterConfig"]["workerGroupSpecs"]:
        [container] = group["template"]["spec"]["containers"]
        gpus = container["resources"]["limits"].get("nvidia.com/gpu")
        assert gpus is None or int(gpus) >= 2
        assert group["rayStartParams"].get("num-gpus") == gpus
        assert int(group["rayStartParams"]["num-cpus"]) == int(container["resources"]["requests"]["cpu"])


def test_every_selector_of_the_project_finds_pods(objects: list[Service], ray_service: Service) -> None:
    labels = [template["metadata"]["labels"] for template in _pods(ray_service)]
    labels += [
        item["spec"]["template"]["metadata"]["labels"] for item in objects if item["kind"] == "StatefulSet"
    ]
    selectors = [
        item["spec"][key]["matchLabels"]
        for item in objects
        for kind, key in (
            ("PodDisruptionBudget", "selector"),
            ("NetworkPolicy", "podSelector"),
            ("PodMonitor", "selector"),
        )
        if item["kind"] == kind
    ]
    assert len(selectors) == 5
    for selector in selectors:
        assert any(selector.items() <= of_pod.items() for of_pod in labels), selector


def test_the_upgrade_strategy_that_the_readme_shows_is_one(ray_service: Service) -> None:
    readme = (Path(__file__).parents[2] / "k8s" / "README.md").read_text()
    [shown] = re.findall(r"^ +```yaml\n(.+?)^ +```", readme, re.DOTALL | re.MULTILINE)
    validate(ray_service | {"spec": ray_service["spec"] | yaml.safe_load(shown)}, SCHEMA)
    assert yaml.safe_load(shown).keys() == {"upgradeStrategy"}
