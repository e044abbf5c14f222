"""What is refused in JSON schemas: keywords that the grammar would not enforce, so that output is valid."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from dspine_cluster.api.structured.patterns import check_pattern
from dspine_cluster.api.structured.schema_parts import CHOICES, referred, refused, schema_parts

_MAX_MULTIPLE = 1000
_NUM_DECIMALS = 6
"""With which xgrammar writes the bounds of numbers."""
_UNQUOTABLE = re.compile(r"\\[\"\\nrtfv0abe]|\\x[01]")
"""In a grammar, a character that no JSON string holds as it is."""
_PLAIN_NAME = re.compile(r"[ !#-\[\]-~]*")
_REFUSED = (
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
    "additionalItems",
    "$dynamicRef",
    "$recursiveRef",
)
_REFUSED_FORMATS = ("idn-email", "idn-hostname", "iri", "iri-reference", "regex")
_ALONE = ("$ref", *CHOICES, "const", "enum")
"""Beside these xgrammar reads no other constraint."""
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_OF_NUMBERS = (*_BOUNDS, "multipleOf")
_OF_STRINGS = ("minLength", "maxLength", "pattern", "format")
_OF_OBJECTS = (
    *("properties", "patternProperties", "additionalProperties", "propertyNames"),
    *("required", "minProperties", "maxProperties"),
)
_OF_ARRAYS = ("items", "prefixItems", "minItems", "maxItems")
_SHOWING = {"properties", "items", "prefixItems"}
_CONSTRAINTS = {"type", *_ALONE, *_OF_NUMBERS, *_OF_STRINGS, *_OF_OBJECTS, *_OF_ARRAYS}
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_PYTHON_TYPES: Mapping[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
}


def check_schema(schema: Any, param: str) -> None:
    """Raises RequestError with the path of what is not supported."""
    parts = list(schema_parts(schema, param))
    known = {id(part) for _, part in parts}
    for path, part in parts:
        _check_keywords(part, path)
        if "$ref" in part:
            _check_reference(part["$ref"], schema, known, path)
        _check_values(part, path)
        _check_numbers(part, path)
        _check_strings(part, path)
        _check_objects(part, path)
        if "propertyNames" in part:
            _check_property_names(part, f"{path}.propertyNames")
        _check_type(part, path)


def _check_keywords(schema: Mapping[str, Any], path: str) -> None:
    unknown = [key for key in _REFUSED if key in schema]
    if schema.get("uniqueItems"):
        unknown.append("uniqueItems")
    if unknown:
        raise refused(path, f"{unknown[0]!r} is not supported in schemas")
    for alone in (key for key in _ALONE if key in schema):
        allowed = {alone, "type"} if alone in ("const", "enum") else {alone}
        if others := sorted(_CONSTRAINTS & schema.keys() - allowed):
            raise refused(path, f"{others[0]!r} beside {alone!r} is not supported in schemas")
    if len(schema.get("allOf") or ()) > 1:
        raise refused(path, "'allOf' of several schemas is not supported")
    for key in _COUNTS:
        count = schema.get(key, 0)
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise refused(path, f"{key!r} must be an integer of at least 0")


def _check_type(schema: Mapping[str, Any], path: str) -> None:
    """Without a type xgrammar reads constraints of objects and arrays only, by what shows that there are some."""
    if "type" in schema:
        if schema["type"] == []:
            raise refused(path, "'type' must not be empty")
        return
    of_containers = () if _SHOWING & schema.keys() else (*_OF_OBJECTS, *_OF_ARRAYS)
    if found := [key for key in (*_OF_NUMBERS, *_OF_STRINGS, *of_containers) if key in schema]:
        raise refused(path, f"{found[0]!r} is supported only beside 'type'; add it")


def _check_reference(reference: Any, root: Any, known: Collection[int], path: str) -> None:
    part = referred(reference, root) if str(reference).startswith("#") else None
    if id(part) not in known and not isinstance(part, bool):
        raise refused(
            path,
            f"'$ref' must name a part of the same schema, as '#/$defs/Name', not {str(reference)[:100]!r}",
        )


def _check_values(schema: Mapping[str, Any], path: str) -> None:
    """Of 'enum' and 'const': xgrammar asks nothing of them, and writes some integers as other numbers."""
    declared = schema.get("type")
    types = declared if isinstance(declared, list) else [declared]
    for key in ("enum", "const"):
        values = schema.get(key, []) if key == "enum" else [schema[key]] if key in schema else []
        for value in values if isinstance(values, list) else ():
            if declared is not None and not any(_is_of(value, name) for name in types):
                raise refused(path, f"{key!r} has {_shown(value)}, which 'type' does not allow")
            if _has_large_integer(value):
                raise refused(path, f"{key!r} has {_shown(value)}: integers must have 64 bits at most")


def _is_of(value: Any, name: Any) -> bool:
    if isinstance(value, bool):
        return bool(name == "boolean")
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _PYTHON_TYPES.get(str(name), ()))


def _has_large_integer(value: Any) -> bool:
    if isinstance(value, (list, dict)):
        return any(map(_has_large_integer, value.values() if isinstance(value, dict) else value))
    return isinstance(value, int) and not -(2**63) <= value < 2**63


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)[:50]


def _check_numbers(schema: Mapping[str, Any], path: str) -> None:
    for key in _BOUNDS:
        bound = schema.get(key)
        if isinstance(bound, float) and round(bound, _NUM_DECIMALS) != bound:
            raise refused(path, f"{key!r} is supported with {_NUM_DECIMALS} decimals at most")
    multiple = schema.get("multipleOf")
    if multiple is None:
        return
    is_known = (
        schema.get("type") == "integer" and isinstance(multiple, int) and not {*_BOUNDS} & schema.keys()
    )
    if not (is_known and 0 < multiple <= _MAX_MULTIPLE):
        raise refused(
            path, f"'multipleOf' is supported only for integers without bounds, up to {_MAX_MULTIPLE}"
        )


def _check_strings(schema: Mapping[str, Any], path: str) -> None:
    matched = next((key for key in ("pattern", "format") if key in schema), None)
    if matched and ("minLength" in schema or "maxLength" in schema):
        raise refused(path, f"lengths beside {matched!r} are not supported in schemas")
    if "pattern" in schema and "format" in schema:
        raise refused(path, "'format' beside 'pattern' is not supported in schemas")
    if schema.get("format") in _REFUSED_FORMATS:
        raise refused(path, f"'format' {schema['format']!r} is not supported in schemas")
    for pattern in (schema.get("pattern", ""), *(schema.get("patternProperties") or ())):
        check_json_pattern(str(pattern), path)


def check_json_pattern(pattern: str, path: str) -> None:
    """Refuses a pattern of strings that the grammar would not hold to."""
    import xgrammar

    check_pattern(pattern, path)
    try:
        xgrammar.Grammar.from_regex(pattern)
        text_grammar = str(
            xgrammar.Grammar.from_json_schema(json.dumps({"pattern": pattern, "type": "string"}))
        )
    except (RuntimeError, ValueError) as error:
        raise refused(path, f"pattern {pattern!r}: {str(error).partition(': ')[2].strip()}") from error
    rules = [line for line in text_grammar.splitlines() if line.startswith("root_")]
    if any("Regex(" not in line and _UNQUOTABLE.search(line) for line in rules):
        raise refused(path, f"pattern {pattern!r}: what JSON must escape is not supported in patterns")


def _check_objects(schema: Mapping[str, Any], path: str) -> None:
    required, properties = schema.get("required"), schema.get("properties") or {}
    for name in required if isinstance(required, list) else ():
        if not isinstance(name, str) or name not in properties:
            raise refused(path, f"'required' has {str(name)[:50]!r}, which 'properties' must name, too")
    is_open, patterns = (
        schema.get("additionalProperties", False) is not False,
        schema.get("patternProperties"),
    )
    if is_open and (odd := [name for name in properties if not _PLAIN_NAME.fullmatch(name)]):
        # Others could come by the same name.
        raise refused(
            path, f"'additionalProperties' beside a property named {odd[0][:50]!r} is not supported"
        )
    if is_open and patterns is not None:
        raise refused(path, "'additionalProperties' beside 'patternProperties' is not supported, but false")
    if patterns is not None:
        _check_property_patterns(patterns, properties, path)
    least = schema.get("minProperties", 0)
    if least > 1 and (is_open or patterns is not None or not properties):
        raise refused(path, "'minProperties' above 1 is supported only where all properties are named")


def _check_property_patterns(patterns: Collection[str], properties: Collection[str], path: str) -> None:
    if len(patterns) > 1:
        raise refused(path, "'patternProperties' of several patterns is not supported")
    for pattern in patterns:
        try:
            matched = [name for name in properties if re.search(pattern, name)]
        except re.error:
            matched = list(properties)
        if matched:
            raise refused(
                path, f"'patternProperties' must not match what 'properties' names, as {matched[0][:50]!r}"
            )


def _check_property_names(schema: Mapping[str, Any], path: str) -> None:
    names = schema["propertyNames"]
    if not isinstance(names, Mapping):
        raise refused(path, "must be an object")
    if "properties" in schema or "patternProperties" in schema or schema.get("additionalProperties") is False:
        raise refused(path, "is supported only where no properties are named, and others are allowed")
    if "format" in names:
        raise refused(path, "'format' is not supported here")
    names = {"type": "string", **names}
    _check_keywords(names, path)
    _check_values(names, path)
    _check_strings(names, path)
