from __future__ import annotations

from pathlib import Path

import pytest

from dspine_cluster import miniature
from dspine_cluster.api.answering.answer_events import Call, Content, Merged, merge
from dspine_cluster.api.tool_calling.tool_calls import CallForm, ToolCallParser, call_forms
from tests.api.answers import EMPTY_XML_CALL, JSON_CALL, TYPES, XML_CALL


def read(text: str, *forms: CallForm) -> Merged:
    parser = ToolCallParser(forms or tuple(CallForm), TYPES)
    return merge([*parser.push(Content(text)), *parser.finish()])


def test_white_space_around_calls_is_content_only_between_other_content() -> None:
    assert read(f" \n{EMPTY_XML_CALL}\n").content == ""
    assert read(f"a \n{EMPTY_XML_CALL}\n").content == "a"
    assert read(f"{EMPTY_XML_CALL}\nb").content == "b"
    assert read(f"a\n{EMPTY_XML_CALL} b").content == "a\n b"
    assert read(" \na\n ").content == " \na\n "


def test_calls_are_numbered_and_text_between_them_stays() -> None:
    answer = read(f"{JSON_CALL} and {XML_CALL}")
    assert [(call.index, call.name) for call in answer.calls] == [(0, "find"), (1, "find")]
    assert answer.content == "and"


def test_a_form_that_the_model_was_not_taught_is_content() -> None:
    assert read(JSON_CALL, CallForm.XML) == Merged(content=JSON_CALL)
    assert read(XML_CALL, CallForm.JSON) == Merged(content=XML_CALL)


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "<tool_call>\nfind()\n</tool_call>",
        '<tool_call>{"name": "find", "arguments"}</tool_call>',
        '<tool_call>{"name": "find, "arguments": {}}</tool_call>',
        '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "find", "arguments": [1]}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>\n{"name": "fi',
        "<tool_call>[1]</tool_call>",
        "<tool_call><function=></function></tool_call>",
        "<tool_call>\n<function=find\n</function></tool_call>",
        "<tool_call><func",
        '<tool_call>{"a": ' + "[" * 100_000,
    ],
)
def test_a_malformed_call_is_content_and_a_later_one_still_counts(text: str) -> None:
    assert read(text) == Merged(content=text)
    if text.endswith("</tool_call>"):
        assert read(text + EMPTY_XML_CALL) == Merged(content=text, calls=[Call(0, "stop", "{}")])


def test_a_call_that_breaks_after_its_name_ends_there() -> None:
    text = '<tool_call>{"name": "find", "arguments": {"limit": oops}}</tool_call>!'
    assert read(text) == Merged(content="oops}}</tool_call>!", calls=[Call(0, "find", '{"limit": ')])
    text = "<tool_call><function=find><parameter=limit>3</parameter></function>oops</tool_call>"
    assert read(text) == Merged(content="oops</tool_call>", calls=[Call(0, "find", '{"limit": 3}')])


def test_arguments_leave_as_they_come() -> None:
    parser = ToolCallParser(tuple(CallForm), TYPES)
    pieces = ['<tool_call>\n{"name": "find", "arguments": {"te', 'xt": "a', " b", '"}}', "\n</tool_call>"]
    calls = [merge(parser.push(Content(piece))).calls for piece in pieces]
    assert calls == [
        [Call(0, "find", '{"te')], [Call(0, None, 'xt": "a')], [Call(0, None, " b")], [Call(0, None, '"}')], [],
    ]  # fmt: skip
    parser = ToolCallParser(tuple(CallForm), TYPES)
    pieces = ["<tool_call><function=find><parameter=text>\na\n", "b", "\n</para", "meter></function>"]
    calls = [merge(parser.push(Content(piece))).calls for piece in pieces]
    assert calls == [[Call(0, "find", '{"text": "a')], [Call(0, None, "\\nb")], [], [Call(0, None, '"}')]]


def test_the_chat_template_tells_the_form() -> None:
    assert call_forms(Path(miniature.__file__).with_name("chat_template.jinja").read_text()) == (
        CallForm.JSON,
    )
    assert call_forms(r"""{{- '<tool_call>\n{\"name\": <function-name>, \"arguments\": ...' }}""") == (
        CallForm.JSON,
    )
    assert call_forms("{{- '<tool_call>\n<function=example_function_name>\n' }}") == (CallForm.XML,)
    assert call_forms("{{ messages }}") == (CallForm.JSON, CallForm.XML)
