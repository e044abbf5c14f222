"""`/v1/responses` as the `openai` package sees it, over a real socket."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from dspine_cluster.errors import EngineStoppedError
from tests.api.answers import JSON_CALL
from tests.api.conftest import Api, running_api
from tests.api.fakes import TOOLS_TEMPLATE, FakeGenerator

Serve = Callable[..., Api]
TOOL: Any = {"type": "function", "name": "find", "parameters": {"type": "object"}, "strict": False}
CALL = {"type": "function_call", "call_id": "c1", "name": "find", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "found"}
ANSWER = f"<think>\nA question.\n</think>\n\nI look.\n{JSON_CALL}"


@pytest.fixture(scope="module")
def calling() -> Iterator[Api]:
    with running_api(FakeGenerator(answer=ANSWER), TOOLS_TEMPLATE) as running:
        yield running


def test_a_whole_answer_has_text_usage_and_what_was_asked(api: Api) -> None:
    response = api.openai.responses.create(
        model="fake", input="Hello", instructions="Be brief.", max_output_tokens=10, metadata={"a": "b"}
    )
    assert response.output_text == FakeGenerator.text(api.generator.requests[-1])
    assert response.usage is not None
    assert response.usage.output_tokens == 10
    assert response.usage.input_tokens == len(api.generator.requests[-1].prompt_ids)
    assert (response.instructions, response.metadata) == ("Be brief.", {"a": "b"})
    assert response.id.startswith("resp_")
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


def test_reasoning_text_and_calls_are_items(calling: Api) -> None:
    response = calling.openai.responses.create(model="fake", input="Hello", tools=[TOOL])
    assert response.status == "completed"
    reasoning, message, call = response.output
    assert reasoning.type == "reasoning"
    assert reasoning.content is not None
    assert reasoning.content[0].text == "A question."
    assert message.type == "message"
    assert response.output_text == "I look."
    assert call.type == "function_call"
    assert call.name == "find"
    assert json.loads(call.arguments)["limit"] == 3


def test_the_client_s_own_stream_gathers_the_whole_answer(calling: Api) -> None:
    whole = calling.openai.responses.create(model="fake", input="Hello", tools=[TOOL])
    with calling.openai.responses.stream(model="fake", input="Hello", tools=[TOOL]) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == "response.completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    texts = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(texts) == whole.output_text == final.output_text
    arguments = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(arguments) == whole.output[-1].arguments  # type: ignore[union-attr]
    assert final.usage == whole.usage


async def test_the_async_client_streams_too(calling: Api) -> None:
    async with openai.AsyncOpenAI(base_url=f"{calling.url}/v1", api_key="none", max_retries=0) as client:
        stream = await client.responses.create(model="fake", input="Hello", tools=[TOOL], stream=True)
        types = [event.type async for event in stream]
    assert types[-1] == "response.completed"
    assert "response.output_text.delta" in types


def test_an_answer_goes_back_in_as_it_came(calling: Api) -> None:
    first = calling.openai.responses.create(model="fake", input="Hello", tools=[TOOL])
    items: Any = [{"role": "user", "content": "Hello"}, *first.output]
    call = first.output[-1]
    assert call.type == "function_call"
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "found"})
    calling.openai.responses.create(model="fake", input=items, tools=[TOOL])
    told = calling.http.post("/detokenize", json={"tokens": calling.generator.requests[-1].prompt_ids})
    prompt = told.json()["prompt"]
    assert "A question." in prompt
    assert "I look.[find text=" in prompt
    assert "<|im_start|>tool\nfound" in prompt


def test_events_are_sent_under_their_names(api: Api) -> None:
    answer = api.http.post("/v1/responses", json={"input": "Hello", "max_output_tokens": 3, "stream": True})
    frames = [frame.splitlines() for frame in answer.text.strip().split("\n\n")]
    assert frames.pop() == ["data: [DONE]"]
    for name, data in frames:
        assert name.removeprefix("event: ") == json.loads(data.removeprefix("data: "))["type"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": "x" * 600}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]"),
        ({"input": ["Hello"]}, "input[0]"),
        ({"input": [{"content": "Hello"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input[0].arguments"),
        ({"input": [{**CALL, "arguments": "[1]"}]}, "input[0].arguments"),
        ({"input": [{**RESULT, "output": {"a": 1}}]}, "input[0].output"),
        ({"instructions": ["Be brief."]}, "instructions"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"moderation": {"model": "m"}}, "moderation"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"n": 2}, "n"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"truncation": "some"}, "truncation"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"include": ["everything"]}, "include[0]"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 21}, "top_logprobs"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, "text.format.schema"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "find"}}}, "tool_choice.name"),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]}},
            "tool_choice.tools[0].type",
        ),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].name"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"tools": [TOOL]}, "tools"),
        ({"model": "other"}, "model"),
    ],
)
def test_wrong_requests_are_refused_by_the_field_s_name(
    api: Api, fields: dict[str, object], param: str
) -> None:
    answer = api.http.post("/v1/responses", json={"input": "Hi", **fields})
    assert answer.status_code == (404 if param == "model" else 400)
    assert answer.json()["error"]["param"] == param


def test_failures_before_the_first_token_choose_the_status(serve_api: Serve) -> None:
    api = serve_api(FakeGenerator(error=EngineStoppedError("gone")))
    for stream in (False, True):
        assert api.http.post("/v1/responses", json={"input": "Hi", "stream": stream}).status_code == 503


def test_a_failure_mid_stream_is_the_last_event(serve_api: Serve) -> None:
    api = serve_api(FakeGenerator(error=EngineStoppedError("gone"), fail_after_rounds=2))
    *events, last = api.openai.responses.create(model="fake", input="Hi", stream=True)
    assert [event.sequence_number for event in [*events, last]] == list(range(len(events) + 1))
    assert last.type == "response.failed"
    assert last.response.status == "failed"
    assert last.response.error is not None
    assert last.response.error.code == "server_error"
    assert "gone" in last.response.error.message
    texts = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert last.response.output_text == "".join(texts) != ""
    [item] = last.response.output
    assert item.type == "message"
    assert item.status == "incomplete"


def test_a_client_that_leaves_ends_the_generation(
    serve_api: Serve, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    api = serve_api(FakeGenerator(round_s=0.01))
    with api.openai.responses.create(model="fake", input="Hi", stream=True) as stream:
        next(stream)
    eventually(lambda: (api.generator.num_running, api.generator.num_aborted) == (0, 1))


@pytest.mark.parametrize("stream", [False, True])
def test_the_answer_tells_how_it_was_decoded_where_that_is_asked_for(api: Api, stream: bool) -> None:
    body = {"input": "Hello", "max_output_tokens": 10, "stream": stream, "dspine": {"include_stats": True}}
    answer = api.http.post("/v1/responses", json=body)
    if stream:
        events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
        responses = [json.loads(event).get("response") for event in events]
        assert not any("dspine" in response for response in responses[:-1] if response)
        told = responses[-1]
    else:
        told = answer.json()
    stats = told["dspine"]["stats"]
    assert (stats["rounds"], stats["acceptance_length"]) == (4, 2.5)
    assert "dspine" not in api.http.post("/v1/responses", json={**body, "stream": False, "dspine": {}}).json()


@pytest.mark.parametrize("name", ["include_origins", "stream_tokens"])
def test_what_a_response_does_not_tell_of_tokens_is_refused(api: Api, name: str) -> None:
    answer = api.http.post("/v1/responses", json={"input": "Hello", "dspine": {name: True}})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, f"dspine.{name}")
