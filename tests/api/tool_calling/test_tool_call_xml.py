from __future__ import annotations

import json
import time

from dspine_cluster.api.tool_calling.parameter_types import ParameterTypes
from dspine_cluster.api.tool_calling.tool_call_xml import XmlCall
from tests.api.answers import TYPES


def arguments(body: str, types: ParameterTypes = TYPES) -> object:
    step = XmlCall(types).push(f"<function=find>\n{body}\n</function>")
    assert step.rest == ""
    return json.loads(step.arguments)


def test_values_have_the_types_of_the_schema() -> None:
    body = (
        "<parameter=text>\n5\n</parameter>\n<parameter=limit>\n5\n</parameter>\n<parameter=exact>\nFalse\n</parameter>"
        '\n<parameter=tags>\n["a"]\n</parameter>\n<parameter=unknown>\n5\n</parameter>'
    )
    expected = {"text": "5", "limit": 5, "exact": False, "tags": ["a"], "unknown": "5"}
    assert arguments(body) == expected


def test_one_line_end_around_a_value_is_markup() -> None:
    assert arguments("<parameter=text>\n\n a \n\n</parameter>") == {"text": "\n a \n"}
    assert arguments("<parameter=text>a</parameter>") == {"text": "a"}
    assert arguments("<parameter=text>\n</parameter>") == {"text": ""}


def test_a_value_may_hold_markup() -> None:
    for value in ("</parameter>", "<parameter=x>", "</function>", "</parameter>\n</para", "<tool_call>"):
        assert arguments(f"<parameter=text>\n{value}\n</parameter>") == {"text": value}


def test_a_call_may_end_without_its_function_tag() -> None:
    step = XmlCall(TYPES).push("<function=find>\n<parameter=limit>\n1\n</parameter>\n</tool_call> rest")
    assert (step.arguments, step.rest) == ('{"limit": 1}', "</tool_call> rest")


def test_a_value_that_is_cut_off_leaves_the_arguments_unfinished() -> None:
    for value, text in (("a\n</param", "\\n</param"), ("a\n</parameter>\n", '"'), ("a", "")):
        call = XmlCall(TYPES)
        pushed = call.push(f"<function=find><parameter=text>\n{value}").arguments
        assert (pushed, call.finish().arguments) == ('{"text": "a', text)
    call = XmlCall(TYPES)
    assert call.push("<function=find><parameter=limit>12").arguments == '{"limit": '
    assert call.finish().arguments == "12"


def test_a_long_value_full_of_closing_tags_is_not_searched_again_with_every_piece() -> None:
    call = XmlCall(TYPES)
    call.push("<function=find><parameter=tags>")
    value = "</parameter>" * 8000
    started_s = time.process_time()
    for start in range(0, len(value), 20):
        call.push(value[start : start + 20])
    assert time.process_time() - started_s < 5.0
    assert json.loads(call.push("</parameter></function>").arguments.removeprefix('{"tags": ')[:-1]) == value
