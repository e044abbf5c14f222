"""JSON schemas as grammars of texts that fit them."""

from __future__ import annotations

import json
from typing import Any

from dspine_cluster.api.structured.grammar_text import mended, mended_xml
from dspine_cluster.api.structured.schema_checks import check_schema
from dspine_cluster.api.structured.schema_parts import alternatives, refused, schema_parts

_MAX_CHARS = 1 << 16
_VALUE_END = "</parameter>"
_YEAR = "([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP_YEAR = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_MONTH_AND_DAY = (
    "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = f"({_YEAR}-{_MONTH_AND_DAY}|{_LEAP_YEAR}-02-29)"
_CLOCK = "([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_CLOCK}:[0-5][0-9](\.[0-9]{{1,9}})?(Z|[+-]{_CLOCK})"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_FORMATS = {
    "date": f"^{_DATE}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "time": f"^{_TIME}$",
    "ipv4": rf"^({_BYTE}\.){{3}}{_BYTE}$",
}
"""Days that exist, from the year 1 on, minutes of 60 seconds, and no leading zeros: xgrammar's own forms differ."""


def schema_grammar(schema: Any, param: str) -> str:
    """EBNF of the JSON texts that `schema` allows, in one line and with the white space of Python's `json.dumps`.
    Properties come in the schema's order; those that it does not name are left out unless it says what they are.

    Raises:
        RequestError: the schema is too large or too deep, or asks for what the grammar would not enforce.
    """
    import xgrammar  # when the first schema comes: it takes seconds

    text = json.dumps(_checked(schema, param))
    try:
        return mended(str(xgrammar.Grammar.from_json_schema(text, any_whitespace=False)))
    except (RuntimeError, ValueError) as error:
        raise refused(param, _cause(error)) from error


def xml_parameters_grammar(schema: Any, param: str) -> str:
    """EBNF of the parameters of a call in XML that fit `schema`, as `api.tool_call_xml` reads them. JSON inside may
    have a little white space. Beside named properties there are no others.

    Raises:
        RequestError: as for `schema_grammar`, or the XML cannot give the name of a property.
    """
    import xgrammar

    schema = _checked(schema, param)
    if _VALUE_END in json.dumps(schema):
        raise refused(param, f"calls of this model cannot hold {_VALUE_END!r}")
    for part in alternatives(schema):
        assert isinstance(part, dict), "it comes from JSON"
        if odd := [name for name in part.get("properties", ()) if not is_xml_name(name)]:
            raise refused(param, f"calls of this model cannot name a parameter {odd[0][:50]!r}")
        if "patternProperties" in part or "propertyNames" in part:
            raise refused(param, "calls of this model can have only parameters that 'properties' names")
        if part.get("properties"):
            part["additionalProperties"] = False
    tag = {"type": "json_schema", "json_schema": schema, "style": "qwen_xml", "max_whitespace_cnt": 1}
    text = json.dumps({"type": "structural_tag", "format": tag})
    try:
        return mended_xml(str(xgrammar.Grammar.from_structural_tag(text)))
    except (RuntimeError, ValueError) as error:
        raise refused(param, _cause(error)) from error


def is_xml_name(name: str) -> bool:
    """Whether the tags of calls in XML can hold it."""
    return bool(name) and name == name.strip() and not set(name) & set("<>\n")


def _checked(schema: Any, param: str) -> Any:
    """A copy of `schema` for xgrammar."""
    try:
        text = json.dumps(schema)
    except RecursionError as error:
        raise refused(param, "the schema is too deep") from error
    if len(text) > _MAX_CHARS:
        raise refused(param, f"the schema has more than {_MAX_CHARS} characters")
    check_schema(schema, param)
    schema = json.loads(text)
    for _, part in list(schema_parts(schema, param)):
        assert isinstance(part, dict), "it comes from JSON"
        if pattern := _FORMATS.get(str(part.get("format"))):
            del part["format"]
            part["pattern"] = pattern
        # Counts of what may be anything: xgrammar takes them for counts of nothing.
        if {"minItems", "maxItems"} & part.keys() and "prefixItems" not in part:
            part.setdefault("items", True)
        if {"minProperties", "maxProperties"} & part.keys() and not part.get("properties"):
            part.setdefault("additionalProperties", True)
    return schema


def _cause(error: Exception) -> str:
    return str(error).partition(": ")[2].strip() or str(error)
