"""What manifests name is there: ports, volumes, secrets, classes, and what Ray is told of its pods."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from dspine_serve.args import AppArgs

README = (Path(__file__).parents[2] / "k8s" / "README.md").read_text()
Object = dict[str, Any]


def pods(objects: list[Object]) -> list[Object]:
    """Templates of all pods."""
    found = [item["spec"]["template"] for item in objects if item["kind"] == "StatefulSet"]
    for item in objects:
        if item["kind"] == "RayService":
            cluster = item["spec"]["rayClusterConfig"]
            found += [group["template"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]
    return found


def ports(pod: Object) -> dict[str, int]:
    return {p["name"]: p["containerPort"] for c in pod["spec"]["containers"] for p in c["ports"]}


def selected(objects: list[Object], labels: dict[str, str]) -> list[Object]:
    return [pod for pod in pods(objects) if labels.items() <= pod["metadata"]["labels"].items()]


def names(objects: list[Object], kind: str) -> set[str]:
    return {item["metadata"]["name"] for item in objects if item["kind"] == kind}


def all_of(value: Any, key: str) -> list[Any]:
    """Everything under `key`, wherever it is."""
    if isinstance(value, list):
        return [found for item in value for found in all_of(item, key)]
    if not isinstance(value, dict):
        return []
    below = [found for item in value.values() for found in all_of(item, key)]
    return [value[key], *below] if key in value else below


def test_volumes_configs_claims_and_classes_are_there(objects: list[Object]) -> None:
    templates = [item for item in objects if item["kind"] == "StatefulSet"]
    claimed = {claim["metadata"]["name"] for t in templates for claim in t["spec"]["volumeClaimTemplates"]}
    for pod in pods(objects):
        volumes = {volume["name"] for volume in pod["spec"].get("volumes", [])} | claimed
        assert {mount["name"] for mounts in all_of(pod, "volumeMounts") for mount in mounts} <= volumes
        assert {source["name"] for source in all_of(pod, "configMap")} <= names(objects, "ConfigMap")
        assert set(all_of(pod, "claimName")) <= names(objects, "PersistentVolumeClaim")
        assert pod["spec"]["priorityClassName"] in names(objects, "PriorityClass")


def test_secrets_are_those_that_the_readme_has_made(objects: list[Object]) -> None:
    keyed = [(ref["name"], ref["key"]) for ref in all_of(objects, "secretKeyRef")]
    assert keyed == [("redis", "password")] * 2
    assert "secret generic redis --from-literal=password=" in README
    for reference in all_of(objects, "secretRef"):
        assert reference == {"name": "hugging-face", "optional": True}
        assert "secret `hugging-face` with `HF_TOKEN`" in README


def test_redis_is_reached_at_the_address_that_ray_is_given(
    objects: list[Object], ray_service: Object
) -> None:
    [service] = [item for item in objects if item["kind"] == "Service"]
    [redis] = [item for item in objects if item["kind"] == "StatefulSet"]
    [port] = service["spec"]["ports"]
    address = ray_service["spec"]["rayClusterConfig"]["gcsFaultToleranceOptions"]["redisAddress"]
    assert address == f"{service['metadata']['name']}:{port['port']}"
    assert redis["spec"]["serviceName"] == service["metadata"]["name"]
    assert redis["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]
    [pod] = selected(objects, service["spec"]["selector"])
    assert ports(pod)[port["targetPort"]] == port["port"]


def test_policies_open_ports_that_pods_have_to_those_whom_they_name(objects: list[Object]) -> None:
    for policy in (item for item in objects if item["kind"] == "NetworkPolicy"):
        labels = policy["spec"]["podSelector"]["matchLabels"]
        known = {number for pod in selected(objects, labels) for number in ports(pod).values()}
        assert policy["spec"]["policyTypes"][0] == "Ingress"
        for rule in policy["spec"]["ingress"]:
            peers = rule["from"]
            assert all(all_of(peer, "matchLabels") for peer in peers)
            is_itself = peers == [{"podSelector": {"matchLabels": labels}}]
            assert is_itself or {port["port"] for port in rule["ports"]} <= known


def test_the_monitor_reads_a_port_of_all_of_ray_s_pods(objects: list[Object]) -> None:
    [monitor] = [item for item in objects if item["kind"] == "PodMonitor"]
    for pod in selected(objects, monitor["spec"]["selector"]["matchLabels"]):
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            assert endpoint["port"] in ports(pod)


def test_serve_listens_where_pods_and_the_service_say(ray_service: Object) -> None:
    http = yaml.safe_load(ray_service["spec"]["serveConfigV2"])["http_options"]
    assert http["host"] == "0.0.0.0"
    for pod in pods([ray_service]):
        assert ports(pod)["serve"] == http["port"]


def test_ray_s_pods_have_an_image_of_this_project(ray_service: Object) -> None:
    """Of init containers as well."""
    assert set(all_of(ray_service, "image")) <= {"dspine-cpu:0.1.0", "dspine-gpu:0.1.0"}
    assert len(set(all_of(ray_service, "image"))) == 1


def needed(args: AppArgs, *, most: bool) -> dict[str, float]:
    """What all replicas reserve, as they start or with as many as autoscaling may ask for."""
    total: dict[str, float] = {}
    limits = {"verifiers": args.autoscaling.verifiers, "drafters": args.autoscaling.drafters}
    for name in ("directory", "ingresses", "verifiers", "drafters"):
        replicas = getattr(args, name)
        count = replicas.num_replicas
        if most and name in limits and replicas.autoscaled:
            count = limits[name].max_replicas
        ranks = args.engine.tensor_parallel if name == "verifiers" else 1
        for resource, amount in replicas.reserved(ranks).items():
            total[resource] = total.get(resource, 0) + amount * count
    return total


def test_replicas_find_room_on_what_the_autoscaler_keeps_and_on_what_it_may_add(ray_service: Object) -> None:
    [application] = yaml.safe_load(ray_service["spec"]["serveConfigV2"])["applications"]
    args = AppArgs.model_validate(application["args"])
    for most, bound in ((False, "minReplicas"), (True, "maxReplicas")):
        room: dict[str, float] = {}
        for group in ray_service["spec"]["rayClusterConfig"]["workerGroupSpecs"]:
            params = group["rayStartParams"]
            # KubeRay passes the value to a shell, which takes one pair of quotes off.
            custom = json.loads(json.loads(params["resources"].strip("'"))) if "resources" in params else {}
            own = {"CPU": int(params["num-cpus"]), "GPU": int(params.get("num-gpus", 0))}
            for name, amount in (custom | own).items():
                room[name] = room.get(name, 0) + amount * group[bound]
        for name, amount in needed(args, most=most).items():
            assert room.get(name, 0) >= amount, name
