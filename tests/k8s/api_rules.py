"""What an API server and KubeRay's webhooks refuse beside what schemas say, and names that lead nowhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from itertools import chain
from typing import Any

Object = dict[str, Any]
Path = tuple[str | int, ...]

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_SERVICE = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_PORT = re.compile(r"(?=.*[a-z])(?!.*--)[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?")
_ENV = re.compile(r"[-._A-Za-z][-._A-Za-z0-9]*")
_WORD = re.compile(r"[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?")
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(m|k|[KMGTPE]i|[MGTPE])?")
_DURATION = re.compile(r"\d+(ms|s|m|h)")
_SCALES = {"": Decimal(1), "m": Decimal("0.001"), "k": Decimal(1000)} | {
    f"{letter}{i}": Decimal(1024 if i else 1000) ** power
    for power, letter in enumerate("KMGTPE", 1)
    for i in ("i", "")
}
_NAMED = {"containers": _LABEL, "initContainers": _LABEL, "volumes": _LABEL, "env": _ENV}
_LABELS = ("labels", "matchLabels", "nodeSelector")
_CLUSTER_WIDE = ("Namespace", "PriorityClass")
_MOST = 2**31 - 1
"""Of an int32."""


def problems(objects: list[Object]) -> list[str]:
    """One line for each rule that is broken; none for what can be applied."""
    found = [*_of_metadata(objects)]
    for item in objects:
        name = f"{item['kind']}/{item['metadata'].get('name')}"
        for path, value in _walk({key: v for key, v in item.items() if key != "data"}):
            broken = chain(_of_value(path, value), _of_list(path, value), _of_mapping(path, value))
            found += [f"{name} {'/'.join(map(str, path))}: {problem}" for problem in broken]
    return found


def _walk(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    yield path, value
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _walk(item, (*path, key))


def _of_metadata(objects: list[Object]) -> Iterator[str]:
    [namespace] = [item["metadata"]["name"] for item in objects if item["kind"] == "Namespace"]
    seen = set()
    for item in objects:
        kind, metadata = item["kind"], item["metadata"]
        name = metadata.get("name", "")
        pattern = _SERVICE if kind in ("Service", "RayService") else _SUBDOMAIN
        if not pattern.fullmatch(name):
            yield f"{kind} cannot be named {name!r}"
        if kind not in _CLUSTER_WIDE and metadata.get("namespace") != namespace:
            yield f"{kind}/{name} is not in the namespace {namespace}"
        if (kind, name) in seen:
            yield f"{kind}/{name} is there twice"
        seen.add((kind, name))


def _of_value(path: Path, value: Any) -> Iterator[str]:
    key = path[-1] if path else ""
    if isinstance(value, int) and not isinstance(value, bool) and not 0 <= value <= _MOST:
        yield f"{value} is out of range"
    if key in ("port", "containerPort") and isinstance(value, int) and not 1 <= value <= 65535:
        yield f"{value} is no port"
    if key in ("storage", "sizeLimit") and _amount(value) is None:
        yield f"{value!r} is no quantity"
    if key == "interval" and not _DURATION.fullmatch(str(value)):
        yield f"{value!r} is no duration"
    if key == "image" and not re.fullmatch(r"[a-z0-9./-]+:[\w.-]+", value):
        yield f"{value!r} is no image with a tag"


def _of_list(path: Path, value: Any) -> Iterator[str]:
    key = path[-1] if path else ""
    if not isinstance(value, list):
        return
    if key in _NAMED:
        yield from _of_names([item.get("name", "") for item in value], _NAMED[key])
    if key == "ports" and path[-3:-2] != ("ingress",):
        yield from _of_names([item.get("name", "") for item in value], _PORT)
        yield from _repeated([item.get("containerPort", item.get("port")) for item in value])
    if key == "volumeMounts":
        yield from _repeated([item.get("mountPath") for item in value])


def _of_mapping(path: Path, value: Any) -> Iterator[str]:
    key = path[-1] if path else ""
    if not isinstance(value, dict):
        return
    if key in _LABELS:
        yield from (f"{k}: {v!r} is no label" for k, v in value.items() if not _is_label(k, v))
        if not value:
            yield "selects everything"
    if key in ("requests", "limits"):
        yield from (f"{k}: {v!r} is no quantity" for k, v in value.items() if _amount(v) is None)
    if key == "resources" and "limits" in value:
        yield from _of_resources(value.get("requests", {}), value["limits"])
    if "groupName" in value:
        if not value["minReplicas"] <= value["replicas"] <= value["maxReplicas"]:
            yield "replicas are not from minReplicas to maxReplicas"
        if not _LABEL.fullmatch(value["groupName"]):
            yield f"{value['groupName']!r} is no name of a group"


def _is_label(key: str, value: Any) -> bool:
    prefix, _, name = key.rpartition("/")
    has_prefix = "/" not in key or _SUBDOMAIN.fullmatch(prefix)
    return bool(has_prefix and _WORD.fullmatch(name) and (value == "" or _WORD.fullmatch(str(value))))


def _amount(quantity: Any) -> Decimal | None:
    match = _QUANTITY.fullmatch(str(quantity))
    return Decimal(match[1]) * _SCALES[match[2] or ""] if match else None


def _of_resources(requests: Object, limits: Object) -> Iterator[str]:
    for name in requests.keys() & limits.keys():
        asked, most = _amount(requests[name]), _amount(limits[name])
        if asked is not None and most is not None and (asked > most or ("/" in name and asked != most)):
            yield f"{name}: {requests[name]} are requested within a limit of {limits[name]}"
    for name in {name for name in requests if "/" in name} - limits.keys():
        yield f"{name} needs a limit"


def _of_names(names: list[str], pattern: re.Pattern[str]) -> Iterator[str]:
    return chain((f"{n!r} is no name" for n in names if not pattern.fullmatch(n)), _repeated(names))


def _repeated(values: list[Any]) -> Iterator[str]:
    return (f"{value!r} is there twice" for value in {v for v in values if values.count(v) > 1})
