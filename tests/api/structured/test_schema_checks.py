from __future__ import annotations

from typing import Any

import pytest

from dspine_cluster.api.structured.schema_checks import check_schema
from dspine_cluster.errors import RequestError

SEVERAL_PATTERNS = {"^a": True, "^b": True}


@pytest.mark.parametrize(
    "schema",
    [
        {
            "type": ["integer", "null"],
            "enum": [1, 2.0, None],
            "description": "d",
            "default": 1,
            "x-unknown": {},
        },
        {"type": "string", "const": "a"},
        {"type": "number", "minimum": 0.000001, "exclusiveMaximum": 1e10},
        {"type": "string", "format": "int32"},
        {"type": "object", "propertyNames": {"maxLength": 3}},
        {"type": "object", "properties": {"a": True}, "patternProperties": {"^b": True}},
        {"type": "object", "properties": {"é": True}, "additionalProperties": False},
        {"properties": {"a": {"$ref": "#/properties/b"}, "b": {"items": {"$ref": "#"}}}},
        {"$ref": "#/$defs/a~1b", "$defs": {"a/b": True}},
        True,
    ],
)
def test_what_the_grammar_holds_to_passes(schema: Any) -> None:
    check_schema(schema, "s")


@pytest.mark.parametrize(
    ("schema", "param", "cause"),
    [
        ({"type": "string", "enum": ["a", 1]}, "s", "'enum' has 1, which 'type' does not allow"),
        ({"type": "integer", "enum": [True]}, "s", "'enum' has true"),
        ({"type": ["string", "null"], "const": 1.5}, "s", "'const' has 1.5"),
        ({"type": "string", "enum": ["a"], "maxLength": 3}, "s", "'maxLength' beside 'enum'"),
        ({"enum": [1], "const": 1}, "s", "beside"),
        ({"enum": [[{"a": 2**63}]]}, "s", "64 bits"),
        ({"type": []}, "s", "'type' must not be empty"),
        ({"minimum": 3}, "s", "'minimum' is supported only beside 'type'"),
        ({"format": "date"}, "s", "'format' is supported only beside 'type'"),
        ({"additionalProperties": True}, "s", "'additionalProperties' is supported only beside 'type'"),
        ({"properties": {"a": {"maxLength": 3}}}, "s.properties.a", "'maxLength' is supported only"),
        ({"type": "number", "maximum": 0.1234567}, "s", "'maximum' is supported with 6 decimals"),
        ({"type": "string", "minLength": -1}, "s", "'minLength' must be an integer of at least 0"),
        ({"type": "array", "maxItems": True}, "s", "'maxItems' must be an integer"),
        ({"type": "string", "format": "idn-email"}, "s", "'format' 'idn-email' is not supported"),
        ({"type": "string", "format": "date", "pattern": "a"}, "s", "'format' beside 'pattern'"),
        ({"type": "string", "pattern": r"[\p{L}]"}, "s", "is not supported in patterns"),
        ({"$ref": "#/x/y", "x": {"y": {"not": {}}}}, "s", r"'\$ref' must name a part"),
        ({"$ref": "#/const", "const": {}}, "s", "beside"),
        ({"anyOf": [{"$ref": "#/title"}], "title": "t"}, "s.anyOf[0]", r"not '#/title'"),
        ({"type": "object", "patternProperties": SEVERAL_PATTERNS}, "s", "of several patterns"),
        (
            {"properties": {"ab": True}, "patternProperties": {"^a": True}},
            "s",
            "must not match what 'properties' names, as 'ab'",
        ),
        (
            {"type": "object", "patternProperties": {"^a": True}, "additionalProperties": True},
            "s",
            "'additionalProperties' beside 'patternProperties'",
        ),
        ({"properties": {"é": True}, "additionalProperties": {}}, "s", "beside a property named 'é'"),
        (
            {"properties": {"A": True}, "propertyNames": {"pattern": "a"}},
            "s.propertyNames",
            "no properties are named",
        ),
        ({"type": "object", "propertyNames": {"format": "date"}}, "s.propertyNames", "'format'"),
        ({"type": "object", "propertyNames": {"not": {}}}, "s.propertyNames", "'not' is not supported"),
        ({"type": "object", "propertyNames": {"pattern": "a^b"}}, "s.propertyNames", "only at the pattern's"),
        ({"type": "object", "propertyNames": True}, "s.propertyNames", "must be an object"),
    ],
)
def test_what_would_not_be_enforced_is_refused_by_place_and_cause(
    schema: Any, param: str, cause: str
) -> None:
    with pytest.raises(RequestError, match=cause) as caught:
        check_schema(schema, "s")
    assert (caught.value.param, caught.value.code) == (param, "invalid_schema")
