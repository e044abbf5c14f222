from __future__ import annotations

import json
from typing import Any

import pytest
import xgrammar

from dspine_cluster.api.structured.json_schemas import schema_grammar, xml_parameters_grammar
from dspine_cluster.errors import RequestError

TOKENS = xgrammar.TokenizerInfo(
    [bytes([byte]) for byte in range(256)] + [b""],
    xgrammar.VocabType.RAW,
    vocab_size=257,
    stop_token_ids=[256],
)
COMPILER = xgrammar.GrammarCompiler(TOKENS, max_threads=1)
POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer", "minimum": 0}, "name": {"type": "string", "maxLength": 3}},
    "required": ["x"],
}


def accepts(schema: Any, text: str) -> bool:
    matcher = xgrammar.GrammarMatcher(COMPILER.compile_grammar(schema_grammar(schema, "schema")))
    return bool(matcher.accept_string(text) and matcher.is_completed())


@pytest.mark.parametrize("value", [{"x": 3}, {"x": 0, "name": "abc"}])
def test_texts_of_a_schema_are_what_json_dumps_writes(value: object) -> None:
    assert accepts(POINT, json.dumps(value))


@pytest.mark.parametrize(
    "text",
    ['{"x":3}', '{"x": 3 }', '{"x": -1}', '{"name": "a"}', '{"x": 1, "y": 2}', '{"x": 1, "name": "abcd"}'],
)
def test_other_texts_are_not_allowed(text: str) -> None:
    assert not accepts(POINT, text)


@pytest.mark.parametrize("text", ["größe", "éa", "\\xdfe", "\\\\xdfe", "中a", "\U0001f600a", 'a"b', "\x7fa"])
def test_letters_beyond_ascii_stay_what_they_are(text: str) -> None:
    assert accepts({"const": text}, json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f"))
    schema = {"type": "object", "properties": {text: {"type": "null"}}, "required": [text]}
    assert accepts(schema, json.dumps({text: None}, ensure_ascii=False).replace("\x7f", "\\u007f"))


def test_an_object_without_properties_may_have_any() -> None:
    assert accepts({"type": "object"}, '{"a": [1, {"b": null}]}')


def test_a_schema_may_refer_to_itself() -> None:
    node = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}}}
    assert accepts({"$defs": {"Node": node}, "$ref": "#/$defs/Node"}, '{"next": {"next": null}}')


def test_counts_without_a_kind_are_counts_of_anything() -> None:
    assert accepts({"type": "array", "minItems": 2}, '[1, "a"]')
    assert not accepts({"type": "array", "minItems": 2}, "[1]")
    assert accepts({"type": "object", "maxProperties": 1}, '{"a": []}')
    assert not accepts({"type": "object", "maxProperties": 1}, '{"a": [], "b": 1}')


@pytest.mark.parametrize(
    ("schema", "texts"),
    [
        (POINT, {"<parameter=x>\n3\n</parameter>": True, "<parameter=x> 3 </parameter>": False}),
        (POINT, {"<parameter=x>\n3\n</parameter>\n<parameter=name>\n<b>\n</parameter>": False}),
        ({"properties": {"a": {"type": "string"}}}, {"<parameter=a>\n<b>\n</parameter>": True}),
        (
            {"properties": {"a": {"type": "string", "format": "date"}}},
            {
                "<parameter=a>\n2024-02-29\n</parameter>": True,
                "<parameter=a>\n2023-02-29\n</parameter>": False,
            },
        ),
        (
            {"properties": {"a": {"type": "array", "items": {"type": "string", "maxLength": 2}}}},
            {'<parameter=a>\n["b"]\n</parameter>': True, '<parameter=a>\n["\t"]\n</parameter>': False},
        ),
        (
            {"properties": {"a": {"const": 1}}, "additionalProperties": {"const": 2}},
            {"<parameter=a>\n1\n</parameter>": True, "<parameter=a>\n2\n</parameter>": False},
        ),
    ],
)
def test_parameters_in_xml_fit_the_schema(schema: dict[str, Any], texts: dict[str, bool]) -> None:
    grammar = xml_parameters_grammar({"type": "object", **schema}, "schema")
    compiled = COMPILER.compile_grammar(grammar)
    for text, is_right in texts.items():
        matcher = xgrammar.GrammarMatcher(compiled)
        assert bool(matcher.accept_string(text) and matcher.is_completed()) == is_right


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a>b": {}}},
        {"anyOf": [{"type": "object", "properties": {" a": {}}}]},
        {"type": "object", "propertyNames": {"pattern": "a"}},
        {"properties": {"a": {"const": "</parameter>"}}},
    ],
)
def test_what_calls_in_xml_cannot_say_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="calls of this model"):
        xml_parameters_grammar(schema, "schema")


def deep(depth: int) -> dict[str, Any]:
    return {"type": "array", "items": deep(depth - 1)} if depth else {"type": "integer"}


@pytest.mark.parametrize(
    ("schema", "param", "cause"),
    [
        ({"properties": {"a": {"not": {}}}}, "schema.properties.a", "'not' is not supported"),
        ({"anyOf": [{"if": {}}]}, "schema.anyOf[0]", "'if' is not supported"),
        ({"type": "array", "uniqueItems": True}, "schema", "'uniqueItems'"),
        ({"anyOf": [{"type": "null"}], "required": ["a"]}, "schema", "'required' beside 'anyOf'"),
        ({"allOf": [{"type": "null"}, {"type": "string"}]}, "schema", "'allOf' of several"),
        ({"$ref": "https://example.com/x.json"}, "schema", r"'\$ref' must name a part"),
        ({"$ref": "#/$defs/A"}, "schema", "A"),
        ({"type": "strnig"}, "schema", "strnig"),
        ({"type": "string", "pattern": "(?=a)b"}, "schema", "Lookahead"),
        ({"type": "string", "pattern": "a{1,5000}"}, "schema", "repeated more than 1000"),
        ({"type": "string", "pattern": "a{" + "9" * 5000 + "}"}, "schema", "repeated more than 1000"),
        ({"type": "string", "pattern": "((a{100}){100}){100}"}, "schema", "multiply to 10000"),
        ({"type": "string", "pattern": "(a{1000}){1,1000}"}, "schema", "multiply to 10000"),
        ({"type": "string", "pattern": "a", "maxLength": 3}, "schema", "lengths beside 'pattern'"),
        ({"type": "number", "multipleOf": 0.1}, "schema", "'multipleOf'"),
        ({"type": "integer", "multipleOf": 10**6}, "schema", "'multipleOf'"),
        ({"type": "object", "minProperties": 2}, "schema", "'minProperties' above 1"),
        ({"items": 3}, "schema.items", "must be an object or a boolean"),
        ({"anyOf": 3}, "schema", "'anyOf' must be a list"),
        ({"anyOf": []}, "schema", "'anyOf' must not be empty"),
        ({"type": "string", "pattern": '^\\d+\\s"$'}, "schema", "must escape"),
        ({"type": "string", "pattern": "\\d\\n"}, "schema", "must escape"),
        ({"type": "string", "pattern": "\\\\a"}, "schema", "must escape"),
        ({"allOf": 3}, "schema", "'allOf' must be a list"),
        ({"minProperties": "a", "properties": {}}, "schema", "minProperties"),
        ({"required": 3, "properties": {}}, "schema", "required"),
        ({"type": "object", "required": ["a"]}, "schema", "'properties' must name"),
        ({"properties": {"b": {"required": ["a"]}}}, "schema.properties.b", "'properties' must name"),
        ({"enum": 3}, "schema", "enum"),
        ({"properties": []}, "schema", "'properties' must be an object"),
        (deep(40), "schema" + 33 * ".items", "32 levels deep"),
        ({"description": "x" * 70_000}, "schema", "65536 characters"),
        (False, "schema", "cannot accept any value"),
    ],
)
def test_what_cannot_be_promised_is_refused_by_place_and_cause(schema: Any, param: str, cause: str) -> None:
    with pytest.raises(RequestError, match=cause) as caught:
        schema_grammar(schema, "schema")
    assert (caught.value.param, caught.value.code) == (param, "invalid_schema")


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        ("time", "23:59:59Z", "23:59:60Z"),
        ("ipv4", "127.0.0.1", "127.00.0.1"),
        ("ipv4", "255.255.255.255", "256.0.0.1"),
    ],
)
def test_formats_hold(kind: str, right: str, wrong: str) -> None:
    assert accepts({"type": "string", "format": kind}, json.dumps(right))
    assert not accepts({"type": "string", "format": kind}, json.dumps(wrong))


@pytest.mark.parametrize("day", ["0001-01-01", "2024-02-29", "2000-02-29", "1999-12-31", "2025-04-30"])
def test_days_of_the_calendar_are_dates(day: str) -> None:
    assert accepts({"type": "string", "format": "date"}, json.dumps(day))
    assert accepts({"type": "string", "format": "date-time"}, json.dumps(f"{day}T23:59:00.25+01:00"))


@pytest.mark.parametrize("day", ["0000-01-01", "2023-02-29", "1900-02-29", "2025-04-31", "2025-13-01"])
def test_days_that_do_not_exist_are_no_dates(day: str) -> None:
    assert not accepts({"type": "string", "format": "date"}, json.dumps(day))
    assert not accepts({"type": "string", "format": "date-time"}, json.dumps(f"{day}T23:59:00Z"))


def test_a_property_may_be_called_format() -> None:
    schema = {"type": "object", "properties": {"format": {"const": "date"}}, "required": ["format"]}
    assert accepts(schema, '{"format": "date"}')
