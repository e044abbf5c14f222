"""Tools and reasoning as the `openai` client sees them, over a real socket."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import openai
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam, ChatCompletionToolParam

from tests.api.answers import JSON_ARGUMENTS, JSON_CALL, XML_CALL
from tests.api.conftest import Api, running_api
from tests.api.fakes import TOOLS_TEMPLATE, FakeGenerator, byte_tokenizer

Serve = Callable[..., Api]
USER: ChatCompletionMessageParam = {"role": "user", "content": "Hello"}
TOOL: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "find",
        "description": "Finds",
        "parameters": {
            "type": "object",
            "properties": {"text": {"type": "string"}, "tags": {"type": "array"}},
        },
    },
}


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    answer = f"<think>\nLet me see.\n</think>\n\nI look.\n{JSON_CALL}\n{XML_CALL}"
    with running_api(FakeGenerator(answer=answer, answer_token_chars=7), TOOLS_TEMPLATE) as running:
        yield running


def chat(api: Api, **fields: object) -> ChatCompletion:
    body = {"model": "fake", "messages": [USER], "tools": [TOOL], **fields}
    return api.openai.post("/chat/completions", body=body, cast_to=ChatCompletion)


def streamed(api: Api) -> ChatCompletion:
    """What the client's own accumulator makes of the stream."""
    state = ChatCompletionStreamState(input_tools=[TOOL])
    for chunk in api.openai.chat.completions.create(
        model="fake", messages=[USER], tools=[TOOL], stream=True, stream_options={"include_usage": True}
    ):
        state.handle_chunk(chunk)
    return state.get_final_completion()


def prompt_of(api: Api) -> str:
    return str(byte_tokenizer().decode(list(api.generator.requests[-1].prompt_ids)))


@pytest.mark.parametrize("get", [chat, streamed])
def test_reasoning_text_and_calls_reach_the_client_apart(
    api: Api, get: Callable[[Api], ChatCompletion]
) -> None:
    [choice] = get(api).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I look."
    assert choice.message.model_extra is not None
    assert choice.message.model_extra["reasoning_content"] == "Let me see."
    assert choice.message.tool_calls is not None
    functions = [call.function for call in choice.message.tool_calls if call.type == "function"]
    assert [function.name for function in functions] == ["find", "find"]
    assert functions[0].arguments == JSON_ARGUMENTS
    xml_arguments = {"text": 'line "1"\n</parameter> 🙂\n', "tags": ["a", {"b": 1}], "exact": "True"}
    assert json.loads(functions[1].arguments) == xml_arguments
    ids = {call.id for call in choice.message.tool_calls}
    assert len(ids) == 2
    assert all(call_id.startswith("call_") for call_id in ids)


def test_a_stream_names_a_call_once_and_its_arguments_come_in_pieces(api: Api) -> None:
    stream = api.openai.chat.completions.create(model="fake", messages=[USER], tools=[TOOL], stream=True)
    deltas = [call for chunk in stream for call in chunk.choices[0].delta.tool_calls or [] if call.index == 0]
    assert [call.function.name for call in deltas if call.function and call.function.name] == ["find"]
    assert [call.id is not None for call in deltas] == [True] + [False] * (len(deltas) - 1)
    assert len(deltas) > 1


def test_the_prompt_tells_of_the_tools_but_not_where_none_may_be_called(api: Api) -> None:
    chat(api)
    assert prompt_of(api).startswith(f"<tools>{json.dumps(TOOL)}</tools>")
    answer = chat(api, tool_choice="none")
    assert prompt_of(api).startswith("<|im_start|>user")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content == f"I look.\n{JSON_CALL}\n{XML_CALL}"


def test_without_parallel_calls_there_is_one(api: Api) -> None:
    answer = chat(api, parallel_tool_calls=False)
    assert len(answer.choices[0].message.tool_calls or []) == 1


def test_a_call_and_its_result_go_back_into_the_prompt(api: Api) -> None:
    message = chat(api).choices[0].message
    assert message.tool_calls is not None
    history = [
        USER,
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "nothing"},
    ]
    chat(api, messages=history)
    prompt = prompt_of(api)
    assert "assistant\n<think>\nLet me see.\n</think>\n\nI look.[find text=" in prompt
    assert "<|im_start|>tool\nnothing<|im_end|>" in prompt


def test_reasoning_can_be_switched_on_in_two_ways(serve_api: Serve) -> None:
    api = serve_api(FakeGenerator(answer="hm\n</think>\n\nHi"), TOOLS_TEMPLATE)
    for fields in ({"reasoning_effort": "high"}, {"chat_template_kwargs": {"enable_thinking": True}}):
        message = chat(api, **fields).choices[0].message
        assert prompt_of(api).endswith("<think>\n")
        assert (message.content, message.model_extra) == ("Hi", {"reasoning_content": "hm"})
    chat(api, reasoning_effort="none")
    assert prompt_of(api).endswith("assistant\n")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "find"}}])
def test_a_forced_call_reaches_the_verifier_as_a_grammar(api: Api, choice: object) -> None:
    chat(api, tool_choice=choice)
    grammar = api.generator.requests[-1].grammar
    assert grammar is not None
    assert grammar.param == "tool_choice"
    chat(api)
    assert api.generator.requests[-1].grammar is None


def test_a_template_without_tools_refuses_them(serve_api: Serve) -> None:
    with pytest.raises(openai.BadRequestError, match="no place for tools"):
        chat(serve_api(FakeGenerator()))
