from __future__ import annotations

import json

import pytest

from dspine_cluster.api.tool_calling.parameter_types import STRING, ParameterTypes, json_text


def types_of(schema: object, **root: object) -> frozenset[str]:
    return ParameterTypes({"f": {"properties": {"x": schema}, **root}}).of("f", "x")


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "integer"}, {"integer"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"anyOf": [{"type": "number"}, {"type": "null"}]}, {"number", "null"}),
        ({"oneOf": [{"allOf": [{"type": "array"}]}]}, {"array"}),
        ({"enum": [True, None]}, {"boolean", "null"}),
        ({"enum": ["a", "b"]}, {"string"}),
        ({"const": 2.5}, {"number"}),
        ({"$ref": "#/$defs/Point"}, {"object"}),
        ({"$ref": "#/$defs/Loop"}, {"string"}),
        ({"$ref": "#/nowhere/at/all"}, {"string"}),
        ({}, {"string"}),
        (True, {"string"}),
    ],
)
def test_types_are_found_where_schemas_have_them(schema: object, types: set[str]) -> None:
    definitions = {"Point": {"type": "object"}, "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}]}}
    assert types_of(schema, **{"$defs": definitions}) == types


def test_types_are_found_in_what_a_schema_refers_to_and_chooses_from() -> None:
    of_f = {"properties": {"x": {"type": "integer"}}, "anyOf": [{"required": ["x"]}, {"required": ["y"]}]}
    of_g = {"$ref": "#/$defs/G", "$defs": {"G": {"anyOf": [{"properties": {"x": {"type": "null"}}}, {}]}}}
    types = ParameterTypes({"f": of_f, "g": of_g})
    assert types.of("f", "x") == {"integer"}
    assert types.of("g", "x") == {"null"}


def test_other_properties_have_their_schema_and_unknown_functions_strings() -> None:
    types = ParameterTypes({"f": {"additionalProperties": {"type": "integer"}}, "g": {"properties": 5}})
    assert types.of("f", "any") == {"integer"}
    assert types.of("g", "any") == types.of("h", "any") == STRING


@pytest.mark.parametrize(
    ("value", "types", "parsed"),
    [
        ("5", {"integer"}, 5),
        ("5", {"number"}, 5),
        ("5.0", {"integer"}, 5.0),
        ("5.5", {"integer"}, "5.5"),
        ("5", {"string"}, "5"),
        (" true ", {"boolean"}, True),
        ("False", {"boolean"}, False),
        ("None", {"string", "null"}, None),
        ("none", {"string", "null"}, "none"),
        ('{"a": [1]}', {"object"}, {"a": [1]}),
        ("{'a'", {"object"}, "{'a'"),
        ("NaN", {"number"}, "NaN"),
        ("[" * 100_000, {"array"}, "[" * 100_000),
        ('é"\n', {"string"}, 'é"\n'),
    ],
)
def test_a_value_is_json_of_a_type_it_can_have_else_a_string(
    value: str, types: set[str], parsed: object
) -> None:
    assert json.loads(json_text(value, frozenset(types))) == parsed
