from __future__ import annotations

import pytest

from dspine_cluster.api.responses_api.schema import ResponseRequest
from dspine_cluster.api.responses_api.translate import chat_of, renamed
from dspine_cluster.errors import RequestError

CALL = {"type": "function_call", "call_id": "c1", "name": "find", "arguments": '{"a": 1}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "found"}


def request(**fields: object) -> ResponseRequest:
    return ResponseRequest.model_validate({"input": "Hi", **fields})


def messages(**fields: object) -> list[dict[str, object]]:
    return [message.model_dump(exclude_unset=True) for message in chat_of(request(**fields)).messages]


def test_a_text_is_a_message_of_the_user() -> None:
    assert messages() == [{"role": "user", "content": "Hi"}]


def test_instructions_are_the_system_s_message() -> None:
    assert messages(instructions="Be brief.")[0] == {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize("role", ["system", "developer"])
def test_instructions_and_a_system_message_are_one(role: str) -> None:
    items = [{"role": role, "content": "Speak French."}, {"role": "user", "content": "Hi"}]
    assert messages(input=items, instructions="Be brief.") == [
        {"role": "system", "content": "Be brief.\n\nSpeak French."},
        {"role": "user", "content": "Hi"},
    ]


def test_what_the_assistant_did_in_one_turn_is_one_message() -> None:
    items = [
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "Find "}, {"type": "input_text", "text": "a"}],
        },
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Hm."}],
        },
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
        },
        CALL,
        {**CALL, "call_id": "c2"},
        RESULT,
        {**RESULT, "call_id": "c2", "output": [{"type": "input_text", "text": "nothing"}]},
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "Thanks"},
    ]
    calls = [
        {"id": name, "type": "function", "function": {"name": "find", "arguments": '{"a": 1}'}}
        for name in ("c1", "c2")
    ]
    assert messages(input=items) == [
        {"role": "user", "content": "Find a"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
        {"role": "tool", "tool_call_id": "c2", "content": "nothing"},
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "Thanks"},
    ]


def test_what_the_assistant_refused_is_its_text() -> None:
    refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    assert messages(input=[refusal]) == [{"role": "assistant", "content": "No."}]


def test_hundreds_of_items_stay_in_order() -> None:
    items = [{"role": ("user", "assistant")[number % 2], "content": str(number)} for number in range(301)]
    assert [message["content"] for message in messages(input=items)] == [str(number) for number in range(301)]


def test_two_answers_side_by_side_stay_two() -> None:
    items = [{"role": "assistant", "content": "One."}, {"role": "assistant", "content": "Two."}]
    assert [message["content"] for message in messages(input=items)] == ["One.", "Two."]


def test_options_reach_the_chat() -> None:
    chat = chat_of(
        request(
            model="m",
            stream=True,
            max_output_tokens=5,
            temperature=0.5,
            top_p=0.9,
            seed=3,
            top_k=7,
            cache_salt="s",
            parallel_tool_calls=False,
            reasoning={"effort": "low", "summary": "auto"},
            tools=[{"type": "function", "name": "find", "parameters": {"type": "object"}, "strict": False}],
            tool_choice={"type": "function", "name": "find"},
            chat_template_kwargs={"preserve_thinking": True},
        )
    )
    assert (chat.model, chat.stream, chat.max_completion_tokens, chat.reasoning_effort) == (
        "m",
        True,
        5,
        "low",
    )
    assert (chat.temperature, chat.top_p, chat.seed, chat.top_k, chat.cache_salt) == (0.5, 0.9, 3, 7, "s")
    assert chat.parallel_tool_calls is False
    assert chat.template_kwargs["preserve_thinking"] is True
    assert chat.tools is not None
    assert chat.tools[0].function.name == "find"
    assert chat.tool_choice == type(chat.tool_choice).model_validate(  # type: ignore[union-attr]
        {"type": "function", "function": {"name": "find"}}
    )


@pytest.mark.parametrize("num_top", [None, 0, 3])
def test_log_probabilities_are_asked_for_by_include(num_top: int | None) -> None:
    chat = chat_of(request(include=["message.output_text.logprobs"], top_logprobs=num_top))
    assert chat.num_top_logprobs == (num_top or 0)
    assert chat_of(request(include=[])).num_top_logprobs is None


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_only_allowed_tools_are_offered(mode: str) -> None:
    tools = [{"type": "function", "name": name} for name in ("find", "stop", "go")]
    allowed = [{"type": "function", "name": name} for name in ("go", "find")]
    chat = chat_of(
        request(tools=tools, tool_choice={"type": "allowed_tools", "mode": mode, "tools": allowed})
    )
    assert [tool.function.name for tool in chat.tools or []] == ["find", "go"]
    assert chat.tool_choice == mode


def test_structured_outputs_reach_the_chat() -> None:
    chat = chat_of(request(structured_outputs={"choice": ["yes", "no"]}))
    assert chat.structured_outputs is not None
    assert chat.structured_outputs.given == {"choice": ["yes", "no"]}


def test_a_format_is_a_chat_s_response_format() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    text = {"format": {"type": "json_schema", "name": "thing", "schema": schema, "strict": True}}
    told = chat_of(request(text=text)).model_dump(by_alias=True)["response_format"]
    assert told["type"] == "json_schema"
    assert {key: told["json_schema"][key] for key in ("name", "schema", "strict")} == {
        "name": "thing",
        "schema": schema,
        "strict": True,
    }


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
    ],
)
def test_what_is_not_done_here_is_refused_by_name(fields: dict[str, object], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat_of(request(**fields))
    assert caught.value.param == param


@pytest.mark.parametrize(
    "fields",
    [
        {"store": True},
        {"store": False},
        {"background": False},
        {"previous_response_id": None},
        {"include": []},
        {"include": ["reasoning.encrypted_content", "file_search_call.results"]},
        {"top_logprobs": 0},
        {"truncation": "auto"},
        {"service_tier": "auto"},
        {"text": {"format": {"type": "text"}, "verbosity": "medium"}},
    ],
)
def test_what_clients_send_by_default_is_taken(fields: dict[str, object]) -> None:
    assert chat_of(request(**fields)).messages


@pytest.mark.parametrize(
    ("chat_param", "param"),
    [
        ("messages", "input"),
        ("messages[3].content", "input"),
        ("max_completion_tokens", "max_output_tokens"),
        ("tools[0].function.strict", "tools[0].strict"),
        ("response_format.json_schema.schema", "text.format.schema"),
        ("response_format.type", "text.format.type"),
        ("temperature", "temperature"),
        (None, None),
    ],
)
def test_fields_are_named_as_the_client_knows_them(chat_param: str | None, param: str | None) -> None:
    error = renamed(RequestError(f"{chat_param}: is wrong.", param=chat_param, code="invalid_value"))
    assert error.param == param
    assert str(error) == f"{param}: is wrong."
    assert error.code == "invalid_value"
