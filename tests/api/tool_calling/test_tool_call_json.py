from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.api.tool_calling.tool_call_json import CallStep, JsonCall, JsonScanner

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(
    value=st.lists(values) | st.dictionaries(st.text(), values), rest=st.text(), indent=st.none() | st.just(2)
)
def test_the_scanner_stops_where_the_value_ends(value: object, rest: str, indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    scanner = JsonScanner()
    assert scanner.push(text + rest) == len(text)
    assert not scanner.is_open
    assert not scanner.is_broken


@pytest.mark.parametrize("text", ["{x", "{'", "[}", "{]", "5}", "[" * 129])
def test_the_scanner_stops_before_what_json_cannot_have(text: str) -> None:
    scanner = JsonScanner()
    assert scanner.push(text) == len(text) - 1
    assert scanner.is_broken


@pytest.mark.parametrize(
    "call",
    [
        '{"arguments": {"a": 1}, "name": "f"}',
        '{"name": "f", "id": 7, "arguments": {"a": 1}}',
        '{"name": "f", "arguments": "{\\"a\\": 1}"}',
        ' {"name"\n:"f" , "arguments" :{"a": 1}, "id": "x}"}',
        '{"name": "\\u0066", "arguments": {"a": 1}}',
    ],
)
def test_other_ways_to_write_a_call_are_calls(call: str) -> None:
    step = JsonCall().push(call + "rest")
    assert step == CallStep("f", '{"a": 1}', "rest")


def test_a_call_without_arguments_has_none() -> None:
    assert JsonCall().push('{"name": "f"}') == CallStep("f", "{}", "")
