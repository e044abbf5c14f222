from __future__ import annotations

import json
from typing import Any

import pytest
import xgrammar

from dspine_cluster.api.answering.reasoning import Thinking
from dspine_cluster.api.schema import ChatCompletionRequest, CompletionRequest
from dspine_cluster.api.structured.output_grammar import AnswerForm, chat_grammar, text_grammar
from dspine_cluster.api.tool_calling.tool_calls import CallForm
from dspine_cluster.api.tool_calling.tools import offered_tools
from dspine_cluster.errors import RequestError
from dspine_cluster.types import OutputGrammar
from tests.api.structured.test_json_schemas import COMPILER, POINT

PLAIN = AnswerForm(Thinking.CLOSED, may_think=True, call_form=CallForm.JSON)
SCHEMA = {"type": "json_schema", "json_schema": {"name": "point", "schema": POINT}}
POINT_TEXT = '{"x": 3}'


def tool(name: str, parameters: Any = POINT, *, strict: bool | None = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, "strict": strict}}


def call(name: str, arguments: str = POINT_TEXT) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def xml_call(name: str, value: str = "3") -> str:
    return f"<tool_call>\n<function={name}>\n<parameter=x>\n{value}\n</parameter>\n</function>\n</tool_call>"


def accepts(grammar: OutputGrammar | None, text: str) -> bool:
    assert grammar is not None
    matcher = xgrammar.GrammarMatcher(COMPILER.compile_structural_tag(grammar.structural_tag))
    return bool(matcher.accept_string(text) and matcher.is_completed())


async def of_chat(form: AnswerForm = PLAIN, **fields: Any) -> OutputGrammar | None:
    body = ChatCompletionRequest.model_validate({"messages": [{"role": "user", "content": "x"}], **fields})
    return await chat_grammar(body, offered_tools(body), form)


async def test_nothing_is_asked_where_anything_goes() -> None:
    assert await of_chat(tools=[tool("f")], response_format={"type": "text"}) is None
    assert await text_grammar(CompletionRequest(prompt="x")) is None


@pytest.mark.parametrize(
    ("fields", "right", "wrong"),
    [
        ({"response_format": {"type": "json_object"}}, '{"a": [1]}', "[1]"),
        ({"response_format": SCHEMA}, POINT_TEXT, '{"x": "3"}'),
        ({"structured_outputs": {"json": POINT}}, POINT_TEXT, "3"),
        ({"structured_outputs": {"json": json.dumps(POINT)}}, POINT_TEXT, "3"),
        ({"structured_outputs": {"json_object": True}}, "{}", "3"),
        ({"structured_outputs": {"regex": "a{2}[0-9]"}}, "aa7", "a7"),
        ({"structured_outputs": {"choice": ["yes", 'n"o']}}, 'n"o', "no"),
        ({"structured_outputs": {"grammar": 'root ::= "(" root ")" | "x"'}}, "((x))", "((x)"),
    ],
)
async def test_the_text_has_the_form_that_is_asked_for(
    fields: dict[str, Any], right: str, wrong: str
) -> None:
    for grammar in (
        await of_chat(**fields),
        await text_grammar(CompletionRequest.model_validate({"prompt": "x", **fields})),
    ):
        assert accepts(grammar, right)
        assert not accepts(grammar, wrong)


@pytest.mark.parametrize(
    ("form", "write"), [(CallForm.JSON, call), (CallForm.XML, xml_call)], ids=["json", "xml"]
)
async def test_forced_calls_are_calls_and_nothing_else(form: CallForm, write: Any) -> None:
    model = AnswerForm(Thinking.CLOSED, may_think=True, call_form=form)
    tools = [tool("f"), tool("g")]
    required = await of_chat(model, tools=tools, tool_choice="required")
    for text, is_right in {
        write("f"): True,
        write("f") + "\n" + write("g"): True,
        "": False,
        "Yes. " + write("f"): False,
        write("h"): False,
        write("f").replace("3", "three"): False,
    }.items():
        assert accepts(required, text) == is_right
    one = await of_chat(model, tools=tools, tool_choice="required", parallel_tool_calls=False)
    assert not accepts(one, write("f") + "\n" + write("g"))
    named = await of_chat(model, tools=tools, tool_choice={"type": "function", "function": {"name": "g"}})
    assert accepts(named, write("g"))
    assert not accepts(named, write("f"))


async def test_arguments_are_an_object_also_where_their_schema_does_not_say_so() -> None:
    grammar = await of_chat(tools=[tool("f", {"description": "any"})], tool_choice="required")
    assert accepts(grammar, call("f", '{"y": 1}'))
    assert not accepts(grammar, call("f", "1"))


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "string"},
        {"enum": [1]},
        {"type": ["object", "null"]},
        {"$ref": "#/$defs/A", "$defs": {"A": {"type": "string"}}},
        {"anyOf": [{"type": "object"}, {"type": "null"}]},
        {"allOf": [{"anyOf": [{"type": "object"}, {"const": {}}]}]},
    ],
)
async def test_arguments_that_are_no_object_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="must be 'object'") as caught:
        await of_chat(tools=[tool("f", parameters, strict=True)])
    assert caught.value.param == "tools[0].function.parameters"


@pytest.mark.parametrize(
    ("form", "write"), [(CallForm.JSON, call), (CallForm.XML, xml_call)], ids=["json", "xml"]
)
async def test_arguments_may_be_what_the_schema_refers_to(form: CallForm, write: Any) -> None:
    model = AnswerForm(Thinking.CLOSED, may_think=True, call_form=form)
    grammar = await of_chat(
        model, tools=[tool("f", {"$ref": "#/$defs/P", "$defs": {"P": POINT}})], tool_choice="required"
    )
    assert accepts(grammar, write("f"))
    assert not accepts(grammar, write("f").replace("3", "three"))


async def test_a_name_that_tags_cannot_hold_is_refused() -> None:
    model = AnswerForm(Thinking.CLOSED, may_think=True, call_form=CallForm.XML)
    with pytest.raises(RequestError, match="cannot name 'a>b'") as caught:
        await of_chat(model, tools=[tool("a>b")], tool_choice="required")
    assert caught.value.param == "tools[0].function.name"


async def test_calls_of_strict_tools_hold_their_schema_and_text_stays_free() -> None:
    grammar = await of_chat(tools=[tool("f", strict=True)])
    assert accepts(grammar, "No call.")
    assert accepts(grammar, "Well.\n" + call("f"))
    assert not accepts(grammar, call("f", '{"x": "3"}'))


async def test_a_form_beside_tools_is_that_of_an_answer_without_a_call() -> None:
    grammar = await of_chat(tools=[tool("f")], response_format=SCHEMA)
    assert accepts(grammar, POINT_TEXT)
    assert accepts(grammar, call("f"))
    assert not accepts(grammar, "Well. " + call("f"))


@pytest.mark.parametrize(
    ("thinking", "before", "is_allowed"),
    [
        (Thinking.OPEN, "Hm {</think>\n\n", True),
        (Thinking.OPEN, "</think>", True),
        (Thinking.OPEN, "", False),
        (Thinking.CLOSED, "", True),
        (Thinking.CLOSED, "<think>Hm</think>", False),
        (Thinking.UNDECIDED, "", True),
        (Thinking.UNDECIDED, "<think>Hm</think>\n\n", True),
        (Thinking.UNDECIDED, "Hm", False),
    ],
)
async def test_the_form_begins_to_hold_where_the_reasoning_ends(
    thinking: Thinking, before: str, is_allowed: bool
) -> None:
    form = AnswerForm(thinking, may_think=True, call_form=CallForm.JSON)
    assert accepts(await of_chat(form, response_format=SCHEMA), before + POINT_TEXT) == is_allowed


async def test_a_model_that_knows_no_reasoning_cannot_begin_with_any() -> None:
    form = AnswerForm(Thinking.UNDECIDED, may_think=False, call_form=CallForm.JSON)
    assert not accepts(await of_chat(form, response_format=SCHEMA), "<think></think>" + POINT_TEXT)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": SCHEMA, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a{5000}"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"structured_outputs": {"regex": r"\p{L}[\p{L}]"}}, "structured_outputs.regex"),
        ({"tools": [tool("f"), tool("g"), tool("f", {})], "tool_choice": "required"}, "tools"),
        (
            {
                "tools": [
                    tool("f"),
                    {"type": "function", "function": {"name": "g", "parameters": {"not": {}}}},
                ],
                "tool_choice": {"type": "function", "function": {"name": "g"}},
            },
            "tools[1].function.parameters",
        ),
    ],
)
async def test_what_cannot_be_promised_is_refused_by_its_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        await of_chat(**fields)
    assert caught.value.param == param
