from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.api.answering.answer_events import Call, Content, Merged
from dspine_cluster.api.answering.answer_parser import AnswerFormat, AnswerParser
from dspine_cluster.api.answering.reasoning import Thinking
from dspine_cluster.api.tool_calling.tool_calls import CallForm
from dspine_cluster.types import FinishReason, RoundOutput
from tests.api.answers import (
    JSON_ARGUMENTS,
    JSON_CALL,
    OTHER_JSON_CALL,
    TYPES,
    XML_CALL,
    read,
    splits,
    texts,
    two_pieces,
)

FORMAT = AnswerFormat(tools=TYPES)
formats = st.builds(
    AnswerFormat,
    thinking=st.sampled_from(Thinking),
    tools=st.sampled_from([None, TYPES]),
    call_forms=st.sampled_from([tuple(CallForm), (CallForm.JSON,), (CallForm.XML,)]),
    parallel_calls=st.booleans(),
)


@given(data=st.data(), text=texts, answer_format=formats)
def test_an_answer_is_the_same_however_it_is_split(
    data: st.DataObject, text: str, answer_format: AnswerFormat
) -> None:
    pieces = data.draw(splits(text))
    assert read(pieces, answer_format)[0] == read([text], answer_format)[0]
    assert read(text, answer_format)[0] == read([text], answer_format)[0]


@given(data=st.data(), text=texts, answer_format=formats)
def test_content_is_told_with_its_place(data: st.DataObject, text: str, answer_format: AnswerFormat) -> None:
    parser = AnswerParser(answer_format)
    rounds = [RoundOutput((1,), piece) for piece in data.draw(splits(text))]
    rounds.append(RoundOutput((), "", finish_reason=FinishReason.STOP))
    contents = [event for output in rounds for event in parser.push(output) if isinstance(event, Content)]
    assert [text[content.start : content.end] for content in contents] == [
        content.text for content in contents
    ]
    places = [place for content in contents for place in (content.start, content.end)]
    assert places == sorted(places)


@pytest.mark.parametrize("call", [JSON_CALL, OTHER_JSON_CALL, XML_CALL])
@pytest.mark.parametrize("cut", [0, 1, 9, 14, 30])
def test_an_answer_is_the_same_wherever_it_is_split_in_two(call: str, cut: int) -> None:
    text = f"<think>\nwhy </thin é\n\n</think>\n\nHere:\n{call}\nand\n{call} 🙂 <tool_cal"
    text = text[: len(text) - cut]
    whole, _ = read([text], FORMAT)
    assert whole.reasoning == "why </thin é"
    for pieces in two_pieces(text):
        assert read(pieces, FORMAT)[0] == whole


@given(texts, st.sampled_from([Thinking.CLOSED, Thinking.UNDECIDED]))
def test_without_tools_and_reasoning_the_content_is_the_text(text: str, thinking: Thinking) -> None:
    if thinking is Thinking.UNDECIDED and text.lstrip().startswith("<think>"):
        text = f"_{text}"
    assert read([text], AnswerFormat(thinking=thinking))[0] == Merged(content=text)


@given(texts)
def test_what_is_no_call_is_content(text: str) -> None:
    answer, _ = read([text], AnswerFormat(thinking=Thinking.CLOSED, tools=TYPES))
    if not answer.calls:
        assert answer.content == text


@given(
    arguments=st.dictionaries(
        st.text(max_size=9),
        st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text('{}[]"\\', max_size=3)),
        max_size=3,
    ),
    ensure_ascii=st.booleans(),
    data=st.data(),
)
def test_any_arguments_come_through_a_json_call(
    arguments: dict[str, object], ensure_ascii: bool, data: st.DataObject
) -> None:
    call = json.dumps({"name": "find", "arguments": arguments}, ensure_ascii=ensure_ascii)
    answer, _ = read(data.draw(splits(f"<tool_call>\n{call}\n</tool_call>")), FORMAT)
    assert [json.loads(call.arguments) for call in answer.calls] == [arguments]
    assert answer.content == ""


@given(value=st.text(st.characters(codec="utf-8")), limit=st.integers(), data=st.data())
def test_any_text_comes_through_an_xml_call(value: str, limit: int, data: st.DataObject) -> None:
    text = (
        f"<tool_call>\n<function=find>\n<parameter=text>\n{value}\n</parameter>\n<parameter=limit>\n{limit}\n"
        "</parameter>\n</function>\n</tool_call>"
    )
    answer, _ = read(data.draw(splits(text)), FORMAT)
    assert [json.loads(call.arguments) for call in answer.calls] == [{"text": value, "limit": limit}]


def test_reasoning_text_and_calls_come_apart() -> None:
    answer, parser = read([f"<think>\nhm\n</think>\n\nLook: {JSON_CALL}\n{XML_CALL}"], FORMAT)
    assert (answer.reasoning, answer.content) == ("hm", "Look:")
    assert [call.name for call in answer.calls] == ["find", "find"]
    assert parser.finish_reason == "tool_calls"


def test_a_call_within_reasoning_is_reasoning() -> None:
    answer, parser = read([f"<think>{JSON_CALL}</think>no"], FORMAT)
    assert answer == Merged(reasoning=JSON_CALL, content="no")
    assert parser.finish_reason == "stop"


def test_a_call_cut_by_the_length_ends_by_it() -> None:
    _, parser = read([JSON_CALL], FORMAT, FinishReason.LENGTH)
    assert parser.finish_reason == "length"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (JSON_CALL, "tool_calls"),
        (JSON_CALL.removesuffix("</tool_call>").rstrip(), "tool_calls"),
        (JSON_CALL.removesuffix("</tool_call>").rstrip().removesuffix("}"), "tool_calls"),
        (JSON_CALL[: JSON_CALL.index("}") - 1], "stop"),
        (f"{JSON_CALL}\n{JSON_CALL[:-20]}", "stop"),
        (XML_CALL, "tool_calls"),
        (XML_CALL[: XML_CALL.index("</function>")], "stop"),
    ],
)
def test_calls_that_a_stop_cuts_within_their_arguments_are_none_to_make(text: str, reason: str) -> None:
    _, parser = read([text], FORMAT)
    assert parser.finish_reason == reason


def test_only_the_first_call_counts_where_one_is_allowed() -> None:
    answer, _ = read([f"{JSON_CALL}\n{XML_CALL}"], AnswerFormat(tools=TYPES, parallel_calls=False))
    assert answer.calls == [Call(0, "find", JSON_ARGUMENTS)]


def test_without_tools_a_call_is_text() -> None:
    assert read([JSON_CALL], AnswerFormat())[0] == Merged(content=JSON_CALL)


def counted(thinking: Thinking, *rounds: RoundOutput) -> int | None:
    parser = AnswerParser(AnswerFormat(thinking=thinking, reasoning_end_id=9))
    for output in rounds:
        parser.push(output)
    return parser.reasoning_tokens


def test_reasoning_tokens_end_with_the_closing_token_inside_a_round() -> None:
    rounds = (RoundOutput((1, 2), "<think>a"), RoundOutput((3, 9, 4, 9), "b</think>c</think>"))
    assert counted(Thinking.UNDECIDED, *rounds) == 4
    assert counted(Thinking.OPEN, *rounds) == 4
    assert counted(Thinking.CLOSED, *rounds) == 0


def test_reasoning_that_is_never_closed_counts_every_token() -> None:
    assert counted(Thinking.OPEN, RoundOutput((1, 2), "a"), RoundOutput((3,), "b")) == 3


def test_reasoning_that_no_single_token_closed_is_not_counted() -> None:
    assert counted(Thinking.OPEN, RoundOutput((1, 2), "a</think>b")) is None
