"""The schemas inside a JSON schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from dspine_cluster.errors import RequestError

_MAX_DEPTH = 32
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_ONES = ("items", "additionalProperties")
CHOICES = ("anyOf", "oneOf", "allOf")


def schema_parts(schema: Any, path: str, depth: int = 0) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every schema of a value in `schema` but `true` and `false`, with its path in the request.

    Raises:
        RequestError: where a schema should be is none, or it is too deep.
    """
    if depth > _MAX_DEPTH:
        raise refused(path, f"the schema is more than {_MAX_DEPTH} levels deep")
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise refused(path, "a schema must be an object or a boolean")
    yield path, schema
    for key in _ONES:
        if key in schema:
            yield from schema_parts(schema[key], f"{path}.{key}", depth + 1)
    for key in _LISTS:
        if not isinstance(schema.get(key, []), list):
            raise refused(path, f"{key!r} must be a list")
        if key in schema and not schema[key]:
            raise refused(path, f"{key!r} must not be empty")
        for index, part in enumerate(schema.get(key, [])):
            yield from schema_parts(part, f"{path}.{key}[{index}]", depth + 1)
    for key in _MAPS:
        if not isinstance(schema.get(key, {}), Mapping):
            raise refused(path, f"{key!r} must be an object")
        for name, part in schema.get(key, {}).items():
            yield from schema_parts(part, f"{path}.{key}.{name}", depth + 1)


def referred(reference: Any, root: Any) -> Any:
    """The part of `root` that a reference as `#/$defs/Name` names; None where there is none."""
    value = root
    for name in unquote(str(reference)).removeprefix("#").split("/")[1:]:
        key = name.replace("~1", "/").replace("~0", "~")
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def alternatives(root: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The schemas one of which a value of `root` fits: itself, or what it refers to or chooses from, and so on."""
    found: list[Mapping[str, Any]] = []
    seen: set[int] = set()
    left: list[Any] = [root]
    while left:
        part = left.pop()
        if not isinstance(part, Mapping) or id(part) in seen:
            continue
        seen.add(id(part))
        others = [referred(part["$ref"], root)] if "$ref" in part else []
        for key in CHOICES:
            others += part[key] if isinstance(part.get(key), list) else []
        left += others
        if not others:
            found.append(part)
    return found


def refused(param: str, reason: str) -> RequestError:
    """What a client is told whose schema, or a pattern of it, cannot be promised."""
    return RequestError(f"{param}: {reason}.", param=param, code="invalid_schema")
