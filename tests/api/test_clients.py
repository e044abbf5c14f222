"""The miniature behind HTTP, as the clients that people have see it: the `openai` package and LangChain."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Literal

import openai
import pytest
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    convert_to_messages,
)
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam, ChatCompletionToolParam
from pydantic import BaseModel, SecretStr

EXAMPLES = Path(__file__).parents[2] / "examples"
QUESTION = "What is 6 times 7?"
ANSWER = "6 * 7 = 42.\nAnswer: 42"
USER: ChatCompletionMessageParam = {"role": "user", "content": QUESTION}
REMINDER = {"text": "book a flight", "day": "Sunday", "time": "15:15"}


class Sum(BaseModel):
    """What the miniature has to answer with."""

    left: Literal[6, 7]
    right: Literal[6, 7]
    correct: bool


@tool
def set_reminder(text: str, day: str, time: str) -> str:
    """Remind the user of something"""
    return f"{text} on {day} at {time}"


TOOL: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "set_reminder",
        "description": "Remind the user of something",
        "parameters": {
            "type": "object",
            "properties": {key: {"type": "string"} for key in REMINDER},
            "required": list(REMINDER),
        },
    },
}


@pytest.fixture(scope="module")
def chat(url: str) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=url,
        api_key=SecretStr("none"),
        model="miniature",
        temperature=0,
        max_retries=0,
        timeout=60,
        stream_usage=True,
    )


def tool_messages() -> list[ChatCompletionMessageParam]:
    """A system message and a request that the miniature answers with a call."""
    messages: list[ChatCompletionMessageParam] = json.loads((EXAMPLES / "tools.json").read_text())["messages"]
    system = str(messages[0]["content"]).partition("\n")[0]  # without the tools, which the template tells of
    return [{"role": "system", "content": system}, *messages[1:]]


def test_openai_answers_a_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="miniature", messages=[USER], temperature=0)
    assert answer.choices[0].message.content == ANSWER
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    assert (answer.usage.completion_tokens_details.accepted_prediction_tokens or 0) > 0


def test_openai_streams_a_chat(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="miniature", messages=[USER], temperature=0) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content == ANSWER
    assert len(deltas) > 1


def test_openai_completes_text_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="miniature", prompt="Once upon", max_tokens=24, temperature=0)
    stream = client.completions.create(
        model="miniature", prompt="Once upon", max_tokens=24, temperature=0, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text != ""


async def test_openai_answers_many_chats_at_once(url: str) -> None:
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as client:

        async def whole() -> str | None:
            answer = await client.chat.completions.create(model="miniature", messages=[USER], temperature=0)
            return answer.choices[0].message.content

        async def streamed() -> str:
            stream = await client.chat.completions.create(
                model="miniature", messages=[USER], temperature=0, stream=True
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        assert set(await asyncio.gather(whole(), streamed(), whole(), streamed())) == {ANSWER}


def test_openai_lists_the_model_and_names_it(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["miniature"]
    assert client.models.retrieve("miniature").id == "miniature"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")


def test_openai_reads_log_probabilities(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="miniature", messages=[USER], temperature=0, logprobs=True, top_logprobs=2
    )
    assert answer.choices[0].logprobs is not None
    content = answer.choices[0].logprobs.content or []
    assert "".join(token.token for token in content).startswith(ANSWER)
    assert all(token.logprob == token.top_logprobs[0].logprob for token in content)  # it is greedy


@pytest.mark.parametrize("is_streamed", [False, True])
def test_openai_gets_a_tool_called(client: openai.OpenAI, is_streamed: bool) -> None:
    def create() -> ChatCompletion:
        if not is_streamed:
            return client.chat.completions.create(
                model="miniature", messages=tool_messages(), tools=[TOOL], temperature=0
            )
        state = ChatCompletionStreamState(input_tools=[TOOL])
        for chunk in client.chat.completions.create(
            model="miniature", messages=tool_messages(), tools=[TOOL], temperature=0, stream=True
        ):
            state.handle_chunk(chunk)
        return state.get_final_completion()

    [choice] = create().choices
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "set_reminder"
    assert json.loads(call.function.arguments) == REMINDER


def test_openai_parses_an_answer_into_a_class(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="miniature", messages=[USER], response_format=Sum, temperature=0, max_tokens=64
    )
    assert isinstance(answer.choices[0].message.parsed, Sum)
    assert answer.choices[0].finish_reason == "stop"


def test_openai_streams_an_answer_of_a_class(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="miniature", messages=[USER], response_format=Sum, temperature=1, seed=1, max_tokens=64
    ) as stream:
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Sum)


def test_openai_gets_a_forced_tool_called(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="miniature",
        messages=[USER],
        tools=[TOOL],
        tool_choice="required",
        temperature=0,
        max_tokens=128,
    )
    [call] = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "set_reminder"


def test_openai_tells_what_is_wrong(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="miniature", messages=[USER], temperature=9)
    assert (caught.value.param, caught.value.type) == ("temperature", "invalid_request_error")


def test_langchain_invokes(chat: ChatOpenAI) -> None:
    answer = chat.invoke([SystemMessage("You are helpful."), HumanMessage(QUESTION)])
    assert "42" in str(answer.content)
    assert isinstance(answer, AIMessage)
    assert answer.response_metadata["finish_reason"] == "stop"
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] > 0


def test_langchain_streams(chat: ChatOpenAI) -> None:
    chunks = list(chat.stream(QUESTION))
    assert len(chunks) > 2
    assert "".join(str(chunk.content) for chunk in chunks) == ANSWER
    usages = [chunk.usage_metadata for chunk in chunks if isinstance(chunk, AIMessageChunk)]
    assert any(usage is not None and usage["output_tokens"] > 0 for usage in usages)


async def test_langchain_invokes_without_waiting(chat: ChatOpenAI) -> None:
    answers = await asyncio.gather(*(chat.ainvoke(QUESTION) for _ in range(3)))
    assert {answer.content for answer in answers} == {ANSWER}


def test_langchain_gets_an_object_of_a_class(chat: ChatOpenAI) -> None:
    assert isinstance(chat.with_structured_output(Sum, method="json_schema").invoke(QUESTION), Sum)


def test_langchain_calls_a_tool_and_gives_the_result_back(chat: ChatOpenAI) -> None:
    with_tool = chat.bind_tools([set_reminder])
    history = convert_to_messages(map(dict, tool_messages()))
    answer = with_tool.invoke(history)
    assert isinstance(answer, AIMessage)
    [call] = answer.tool_calls
    assert (call["name"], call["args"].keys()) == ("set_reminder", REMINDER.keys())
    result = set_reminder.invoke(call)
    assert isinstance(result, ToolMessage)
    again = with_tool.invoke([*history, answer, result])
    assert isinstance(again, AIMessage)
    assert answer.usage_metadata is not None
    assert again.usage_metadata is not None
    assert again.usage_metadata["input_tokens"] > answer.usage_metadata["total_tokens"]


def test_langchain_streams_a_tool_call(chat: ChatOpenAI) -> None:
    whole: AIMessageChunk | None = None
    for chunk in chat.bind_tools([set_reminder]).stream(convert_to_messages(map(dict, tool_messages()))):
        assert isinstance(chunk, AIMessageChunk)
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    [call] = whole.tool_calls
    assert (call["name"], call["args"].keys()) == ("set_reminder", REMINDER.keys())
