"""The miniature's `/v1/responses`, as the `openai` package and LangChain see it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, ToolMessage, convert_to_messages
from langchain_openai import ChatOpenAI
from openai.types.responses import Response, ResponseOutputText
from pydantic import BaseModel, SecretStr

EXAMPLES = Path(__file__).parents[3] / "examples"
QUESTION = "What is 6 times 7?"
ANSWER = "6 * 7 = 42.\nAnswer: 42"
REMINDER = {"text": "book a flight", "day": "Sunday", "time": "15:15"}
TOOL: Any = {
    "type": "function",
    "name": "set_reminder",
    "description": "Remind the user of something",
    "parameters": {
        "type": "object",
        "properties": {key: {"type": "string"} for key in REMINDER},
        "required": list(REMINDER),
    },
}


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    """Raises where an answer has not exactly the published shape."""
    with openai.OpenAI(
        base_url=url, api_key="none", max_retries=0, timeout=60, _strict_response_validation=True
    ) as client:
        yield client


@pytest.fixture(scope="module")
def chat(url: str) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=url,
        api_key=SecretStr("none"),
        model="miniature",
        temperature=0,
        max_retries=0,
        timeout=60,
        use_responses_api=True,
    )


def tool_messages() -> Any:
    """A system message and a request that the miniature answers with a call."""
    system, *others = json.loads((EXAMPLES / "tools.json").read_text())["messages"]
    # Without the tools, of which the template tells.
    return [{"role": "system", "content": system["content"].partition("\n")[0]}, *others]


class Appointment(BaseModel):
    day: Literal["Monday", "Tuesday"]
    urgent: bool


def test_openai_parses_a_response_after_a_schema(client: openai.OpenAI) -> None:
    response = client.responses.parse(
        model="miniature", input="Am I busy on Monday?", text_format=Appointment, temperature=0
    )
    assert response.output_parsed is not None
    assert response.status == "completed"
    assert Appointment.model_validate_json(response.output_text) == response.output_parsed


LOGPROBS: Literal["message.output_text.logprobs"] = "message.output_text.logprobs"


def text_part(response: Response) -> ResponseOutputText:
    """The only part of the only item."""
    [message] = response.output
    assert message.type == "message"
    [part] = message.content
    assert part.type == "output_text"
    return part


def test_openai_reads_log_probabilities_of_a_response(client: openai.OpenAI) -> None:
    response = client.responses.create(
        model="miniature", input=QUESTION, temperature=0, include=[LOGPROBS], top_logprobs=2
    )
    told = text_part(response).logprobs or []
    assert "".join(entry.token for entry in told) == response.output_text == ANSWER
    assert all(entry.logprob == entry.top_logprobs[0].logprob for entry in told)  # it is greedy
    assert {len(entry.top_logprobs) for entry in told} == {2}
    assert response.top_logprobs == 2


def test_log_probabilities_of_a_response_are_those_of_a_chat(client: openai.OpenAI) -> None:
    response = client.responses.create(model="miniature", input=QUESTION, temperature=0, include=[LOGPROBS])
    chat = client.chat.completions.create(
        model="miniature", messages=[{"role": "user", "content": QUESTION}], temperature=0, logprobs=True
    )
    assert chat.choices[0].logprobs is not None
    *expected, end = chat.choices[0].logprobs.content or []
    assert end.token == "<|im_end|>"
    told = [entry.logprob for entry in text_part(response).logprobs or []]
    assert told == pytest.approx([entry.logprob for entry in expected], abs=1e-4)


def test_openai_streams_log_probabilities_of_a_response(client: openai.OpenAI) -> None:
    with client.responses.stream(
        model="miniature", input=QUESTION, temperature=0, include=[LOGPROBS], top_logprobs=1
    ) as stream:
        events = list(stream)
        final = stream.get_final_response()
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 1
    for delta in deltas:
        assert delta.delta == "".join(entry.token for entry in delta.logprobs)
        assert all(len(entry.top_logprobs or []) == 1 for entry in delta.logprobs)
    told = [(entry.token, entry.logprob) for delta in deltas for entry in delta.logprobs]
    [done] = [event for event in events if event.type == "response.output_text.done"]
    assert [(entry.token, entry.logprob) for entry in done.logprobs] == told
    assert [(entry.token, entry.logprob) for entry in text_part(final).logprobs or []] == told


def test_a_response_without_log_probabilities_has_empty_lists(client: openai.OpenAI) -> None:
    with client.responses.stream(model="miniature", input=QUESTION, max_output_tokens=4) as stream:
        events = list(stream)
    assert all(event.logprobs == [] for event in events if event.type == "response.output_text.delta")
    last = events[-1]
    assert last.type == "response.incomplete"
    assert text_part(last.response).logprobs == []


def test_openai_streams_a_response_that_calls_a_tool(client: openai.OpenAI) -> None:
    with client.responses.stream(
        model="miniature",
        input=tool_messages(),
        tools=[TOOL],
        temperature=0,
    ) as stream:
        arguments = [e.delta for e in stream if e.type == "response.function_call_arguments.delta"]
        final = stream.get_final_response()
    [call] = final.output
    assert call.type == "function_call"
    assert call.name == "set_reminder"
    assert json.loads(call.arguments) == json.loads("".join(arguments)) == REMINDER
    assert final.usage is not None
    assert final.usage.output_tokens > 0


def test_langchain_streams_a_response(chat: ChatOpenAI) -> None:
    chunks = list(chat.stream(QUESTION))
    assert "".join(chunk.text for chunk in chunks) == ANSWER
    assert len(chunks) > 2
    usages = [chunk.usage_metadata for chunk in chunks if isinstance(chunk, AIMessageChunk)]
    assert any(usage is not None and usage["output_tokens"] > 0 for usage in usages)


def test_langchain_calls_a_tool_by_responses_and_gives_the_result_back(chat: ChatOpenAI) -> None:
    with_tool = chat.bind_tools([TOOL])
    history = convert_to_messages(tool_messages())
    answer = with_tool.invoke(history)
    assert isinstance(answer, AIMessage)
    [call] = answer.tool_calls
    assert (call["name"], call["args"].keys()) == ("set_reminder", REMINDER.keys())
    again = with_tool.invoke([*history, answer, ToolMessage("done", tool_call_id=call["id"])])
    assert isinstance(again, AIMessage)
    assert answer.usage_metadata is not None
    assert again.usage_metadata is not None
    assert again.usage_metadata["input_tokens"] > answer.usage_metadata["total_tokens"]


def test_langchain_gets_an_object_of_a_class_by_responses(chat: ChatOpenAI) -> None:
    assert isinstance(chat.with_structured_output(Appointment).invoke("Am I busy on Monday?"), Appointment)
