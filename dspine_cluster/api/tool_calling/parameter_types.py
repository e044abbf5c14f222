"""The JSON types of tool parameters: calls in XML give their values as bare text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from dspine_cluster.api.structured.schema_parts import CHOICES, alternatives, referred

_MAX_DEPTH = 8
_PYTHON_LITERALS = {"True": "true", "False": "false", "None": "null"}
STRING = frozenset({"string"})
_TYPES: Mapping[type, frozenset[str]] = {
    type(None): frozenset({"null"}),
    bool: frozenset({"boolean"}),
    int: frozenset({"integer", "number"}),
    float: frozenset({"number"}),
    dict: frozenset({"object"}),
    list: frozenset({"array"}),
}


class ParameterTypes:
    """What the JSON schemas of an answer's tools say about their parameters."""

    def __init__(self, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        """`schemas`: of the parameters object, by the name of the function."""
        self._schemas = schemas

    def of(self, function: str, parameter: str) -> frozenset[str]:
        """The types that a parameter may have; a string where nothing is known."""
        root = self._schemas.get(function, {})
        found = [
            _mapping(part.get("properties")).get(parameter, part.get("additionalProperties"))
            for part in (root, *alternatives(root))
        ]
        return frozenset[str]().union(*(_types(schema, root, 0) for schema in found)) or STRING


def json_text(value: str, types: frozenset[str]) -> str:
    """`value` as JSON of one of `types`; as a string where it is none of them."""
    literal = _PYTHON_LITERALS.get(value.strip(), value.strip())
    try:
        parsed = json.loads(literal, parse_constant=_refuse)
    except (ValueError, RecursionError):
        parsed = ""
    return literal if _types_of(parsed) & types else json.dumps(value, ensure_ascii=False)


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> frozenset[str]:
    schema = _mapping(schema)
    if depth == _MAX_DEPTH:
        return frozenset()
    declared = schema.get("type")
    if isinstance(declared, str):
        return frozenset({declared})
    if isinstance(declared, list):
        return frozenset(name for name in declared if isinstance(name, str))
    if "const" in schema or isinstance(schema.get("enum"), list):
        values = [schema["const"]] if "const" in schema else schema["enum"]
        return frozenset[str]().union(*(_types_of(value) or STRING for value in values))
    parts = [referred(schema["$ref"], root)] if "$ref" in schema else []
    for key in CHOICES:
        if isinstance(schema.get(key), list):
            parts += schema[key]
    return frozenset[str]().union(*(_types(part, root, depth + 1) for part in parts))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _types_of(value: Any) -> frozenset[str]:
    """The types of a value that is not a string."""
    if isinstance(value, float) and value.is_integer():
        return _TYPES[int]
    return _TYPES.get(type(value), frozenset())


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
