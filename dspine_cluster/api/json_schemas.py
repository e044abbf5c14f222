"""JSON schemas as grammars. A keyword that the grammar would not enforce is refused, so that output is valid."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from dspine_cluster.errors import RequestError

_MAX_CHARS = 1 << 16
_MAX_DEPTH = 32
_MAX_MULTIPLE = 1000
_MAX_REPEATS = 1000
_MAX_GROUP_REPEATS = 10_000
_REPEATS = re.compile(r"(\)\s*)?\{\s*([0-9]+)\s*(?:,\s*([0-9]*)\s*)?\}")
_TWO_DIGITS = re.compile(r"(?<!\\)((?:\\\\)*)\\x([0-9a-fA-F]{2})")
_UNQUOTABLE = re.compile(r"\\[\"\\nrtfv0abe]|\\x[01]")
"""In a grammar, a character that no JSON string holds as it is."""
_YEAR = "([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP_YEAR = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_MONTH_AND_DAY = (
    "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = f"({_YEAR}-{_MONTH_AND_DAY}|{_LEAP_YEAR}-02-29)"
_CLOCK = "([01][0-9]|2[0-3]):[0-5][0-9]"
_FORMATS = {
    "date": f"^{_DATE}$",
    "date-time": rf"^{_DATE}T{_CLOCK}:[0-5][0-9](\.[0-9]{{1,9}})?(Z|[+-]{_CLOCK})$",
}
"""Days that exist, from the year 1 on: xgrammar's own forms know no calendar."""
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_ONES = ("items", "additionalProperties", "propertyNames")
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
_ALONE = ("$ref", "anyOf", "oneOf", "allOf")
"""Beside these xgrammar reads no other constraint."""
_CONSTRAINTS = {
    *(
        "type",
        "enum",
        "const",
        "properties",
        "patternProperties",
        "additionalProperties",
        "propertyNames",
        "required",
    ),
    *(
        "items",
        "prefixItems",
        "minItems",
        "maxItems",
        "minProperties",
        "maxProperties",
        "minLength",
        "maxLength",
    ),
    *("pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *_ALONE,
}


def schema_grammar(schema: Any, param: str) -> str:
    """EBNF of the JSON texts that `schema` allows, in one line and with the white space of Python's `json.dumps`.
    Properties come in the schema's order; those that it does not name are left out unless it says what they are.

    Raises:
        RequestError: the schema is too large or too deep, or asks for what the grammar would not enforce.
    """
    import xgrammar  # when the first schema comes: it takes seconds

    try:
        text = json.dumps(schema)
    except RecursionError as error:
        raise _refused(param, "the schema is too deep") from error
    if len(text) > _MAX_CHARS:
        raise _refused(param, f"the schema has more than {_MAX_CHARS} characters")
    for path, part in list(_parts(schema, param, 0)):
        _check(part, path)
    if '"format"' in text:
        text = json.dumps(_with_calendar(json.loads(text), param))
    try:
        grammar = str(xgrammar.Grammar.from_json_schema(text, any_whitespace=False))
    except (RuntimeError, ValueError) as error:
        raise _refused(param, str(error).partition(": ")[2].strip() or str(error)) from error
    # xgrammar writes \\xdf and reads on as long as hexadecimal digits follow.
    return _TWO_DIGITS.sub(r"\1\\u00\2", grammar)


def _with_calendar(schema: Any, param: str) -> Any:
    """Changes the schema, which is returned: patterns in the place of formats that a grammar can say exactly."""
    for _, part in list(_parts(schema, param, 0)):
        pattern = _FORMATS.get(str(part.get("format")))
        if pattern and isinstance(part, dict) and "pattern" not in part:
            del part["format"]
            part["pattern"] = pattern
    return schema


def check_repeats(pattern: str, param: str) -> None:
    """Refuses counts in braces that would make grammars large. Groups count as if each that repeats held the others."""
    of_groups = of_others = 1
    for group, *counts in (match.groups() for match in _REPEATS.finditer(pattern)):
        # Compared by length first: Python reads no integers of thousands of digits.
        digits = [count.lstrip("0") or "0" for count in counts if count]
        if any(len(count) > 4 or int(count) > _MAX_REPEATS for count in digits):
            raise _refused(param, f"nothing may be repeated more than {_MAX_REPEATS} times")
        most = max(1, *map(int, digits))
        if group:
            of_groups *= most
        else:
            of_others = max(of_others, most)
        if of_groups * of_others > _MAX_GROUP_REPEATS:
            raise _refused(param, f"counts of groups may multiply to {_MAX_GROUP_REPEATS} at most")


def _parts(schema: Any, path: str, depth: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every schema in `schema`, with its path in the request."""
    if depth > _MAX_DEPTH:
        raise _refused(path, f"the schema is more than {_MAX_DEPTH} levels deep")
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise _refused(path, "a schema must be an object or a boolean")
    yield path, schema
    for key in _ONES:
        if key in schema:
            yield from _parts(schema[key], f"{path}.{key}", depth + 1)
    for key in _LISTS:
        if not isinstance(schema.get(key, []), list):
            raise _refused(path, f"{key!r} must be a list")
        if key in schema and not schema[key] and key != "prefixItems":
            raise _refused(path, f"{key!r} must not be empty")
        for index, part in enumerate(schema.get(key, [])):
            yield from _parts(part, f"{path}.{key}[{index}]", depth + 1)
    for key in _MAPS:
        if not isinstance(schema.get(key, {}), Mapping):
            raise _refused(path, f"{key!r} must be an object")
        for name, part in schema.get(key, {}).items():
            yield from _parts(part, f"{path}.{key}.{name}", depth + 1)


def _check(schema: Mapping[str, Any], path: str) -> None:
    unknown = [key for key in _REFUSED if key in schema]
    if schema.get("uniqueItems"):
        unknown.append("uniqueItems")
    if unknown:
        raise _refused(path, f"{unknown[0]!r} is not supported in schemas")
    for alone in (key for key in _ALONE if key in schema):
        if others := sorted(_CONSTRAINTS & schema.keys() - {alone}):
            raise _refused(path, f"{others[0]!r} beside {alone!r} is not supported in schemas")
    if len(schema.get("allOf") or ()) > 1:
        raise _refused(path, "'allOf' of several schemas is not supported")
    reference = schema.get("$ref", "#")
    if reference != "#" and not str(reference).startswith("#/"):
        raise _refused(path, "'$ref' must name a part of the same schema, as '#/$defs/Name'")
    _check_required(schema, path)
    _check_strings(schema, path)
    _check_numbers(schema, path)
    is_open = schema.get("additionalProperties", False) is not False or "patternProperties" in schema
    least = schema.get("minProperties")
    if isinstance(least, int) and least > 1 and (is_open or not schema.get("properties")):
        raise _refused(path, "'minProperties' above 1 is supported only where all properties are named")


def _check_required(schema: Mapping[str, Any], path: str) -> None:
    required, properties = schema.get("required"), schema.get("properties") or {}
    for name in required if isinstance(required, list) else ():
        if not isinstance(name, str) or name not in properties:
            raise _refused(path, f"'required' has {str(name)[:50]!r}, which 'properties' must name, too")


def _check_strings(schema: Mapping[str, Any], path: str) -> None:
    import xgrammar

    matched = next((key for key in ("pattern", "format") if key in schema), None)
    if matched and ("minLength" in schema or "maxLength" in schema):
        raise _refused(path, f"lengths beside {matched!r} are not supported in schemas")
    for pattern in (schema.get("pattern", ""), *(schema.get("patternProperties") or ())):
        check_repeats(str(pattern), path)
        try:
            xgrammar.Grammar.from_regex(str(pattern))
            text_grammar = str(
                xgrammar.Grammar.from_json_schema(json.dumps({"pattern": str(pattern), "type": "string"}))
            )
        except (RuntimeError, ValueError) as error:
            raise _refused(path, f"pattern {pattern!r}: {str(error).partition(': ')[2].strip()}") from error
        rules = [line for line in text_grammar.splitlines() if line.startswith("root_")]
        if any("Regex(" not in line and _UNQUOTABLE.search(line) for line in rules):
            raise _refused(path, f"pattern {pattern!r}: what JSON must escape is not supported in patterns")


def _check_numbers(schema: Mapping[str, Any], path: str) -> None:
    multiple = schema.get("multipleOf")
    if multiple is None:
        return
    bounds = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
    is_known = schema.get("type") == "integer" and isinstance(multiple, int) and not bounds & schema.keys()
    if not (is_known and 0 < multiple <= _MAX_MULTIPLE):
        raise _refused(
            path, f"'multipleOf' is supported only for integers without bounds, up to {_MAX_MULTIPLE}"
        )


def _refused(param: str, reason: str) -> RequestError:
    return RequestError(f"{param}: {reason}.", param=param, code="invalid_schema")
