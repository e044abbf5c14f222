"""The interface as the clients that people use see it, over a real socket."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any

import openai
import pytest

from dspine_cluster.errors import EngineStoppedError, OverloadedError, RequestError
from tests.api.conftest import Api
from tests.api.fakes import FakeGenerator, byte_tokenizer

Serve = Callable[[FakeGenerator], Api]
Eventually = Callable[[Callable[[], bool]], None]
MESSAGES: list[dict[str, str]] = [{"role": "user", "content": "Hello"}]


def chat_body(**fields: object) -> dict[str, object]:
    return {"model": "fake", "messages": MESSAGES, "max_tokens": 10, **fields}


def test_openai_client_gets_a_whole_chat_answer(api: Api) -> None:
    answer = api.openai.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": "Hello"}], max_tokens=10
    )
    assert answer.choices[0].message.content == FakeGenerator.text(api.generator.requests[-1])
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 10


def test_openai_client_streams_the_same_chat_answer(api: Api) -> None:
    stream = api.openai.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": "Hello"}], max_tokens=10, stream=True
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == FakeGenerator.text(api.generator.requests[-1])
    assert [chunk.choices[0].finish_reason for chunk in chunks[-2:]] == [None, "length"]
    assert len({chunk.id for chunk in chunks}) == 1


async def test_async_openai_client_streams_many_chats_at_once(api: Api) -> None:
    async with openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key="none", max_retries=0) as client:

        async def chat(content: str) -> str:
            stream = await client.chat.completions.create(
                model="fake", messages=[{"role": "user", "content": content}], max_tokens=9, stream=True
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        first, *others = await asyncio.gather(*(chat(f"prompt {i % 4}") for i in range(16)))
    assert len({first, *others}) == 4


def test_stream_has_one_event_a_round(api: Api) -> None:
    with api.http.stream(
        "POST", "/v1/completions", json={"prompt": "x", "max_tokens": 9, "stream": True}
    ) as answer:
        events = [line for line in answer.iter_lines() if line]
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert len(events) == 3 + 1
    assert events[-1] == "data: [DONE]"


def test_streamed_usage_comes_in_a_last_event_without_choices(api: Api) -> None:
    stream = api.openai.completions.create(
        model="fake", prompt="a" * 40, max_tokens=7, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    assert last.choices == []
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens) == (40, 7, 47)
    assert all(chunk.usage is None for chunk in chunks)


def test_usage_tells_cached_accepted_and_rejected_tokens(api: Api) -> None:
    answer = api.openai.completions.create(model="fake", prompt="a" * 40, max_tokens=6)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 32
    assert answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.accepted_prediction_tokens == 4
    assert answer.usage.completion_tokens_details.rejected_prediction_tokens == 26


@pytest.mark.parametrize("stream", [False, True])
def test_choices_of_several_prompts_are_numbered_prompt_by_prompt(api: Api, stream: bool) -> None:
    seen = len(api.generator.requests)
    answer = api.http.post(
        "/v1/completions",
        json={"prompt": ["one", "two"], "n": 2, "seed": 5, "max_tokens": 4, "stream": stream},
    )
    texts: dict[int, str] = {}
    for line in answer.text.splitlines() if stream else [f"data: {answer.text}"]:
        if line and line != "data: [DONE]":
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    by_number = sorted(api.generator.requests[seen:], key=lambda request: request.request_id[-1])
    assert texts == {index: FakeGenerator.text(request) for index, request in enumerate(by_number)}
    assert len(set(texts.values())) == 4


def test_a_prompt_with_several_completions_is_billed_once(api: Api) -> None:
    answer = api.openai.completions.create(model="fake", prompt=["aaa", "bbbbb"], n=3, max_tokens=4)
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (8, 24)


def test_token_ids_are_taken_as_they_are(api: Api) -> None:
    api.openai.completions.create(model="fake", prompt=[[5, 6], [7]], max_tokens=1)
    assert [request.prompt_ids for request in api.generator.requests[-2:]] == [(5, 6), (7,)]


def test_health_follows_the_generator(api: Api, serve_api: Serve) -> None:
    assert api.http.get("/health").status_code == 200
    broken = serve_api(FakeGenerator(error=EngineStoppedError("no verifier")))
    assert broken.http.get("/health").status_code == 503


def test_a_prompt_beyond_the_context_is_refused_before_any_work(api: Api) -> None:
    seen = len(api.generator.requests)
    with pytest.raises(openai.BadRequestError) as caught:
        api.openai.chat.completions.create(model="fake", messages=[{"role": "user", "content": "x" * 600}])
    assert caught.value.code == "context_length_exceeded"
    assert len(api.generator.requests) == seen


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (RequestError("bad", param="seed"), 400, None),
        (OverloadedError("full", retry_after_s=1.5), 429, "overloaded"),
        (EngineStoppedError("gone"), 503, "engine_stopped"),
    ],
)
def test_failures_before_the_first_token_choose_the_status(
    serve_api: Serve, stream: bool, error: Exception, status: int, code: str | None
) -> None:
    answer = serve_api(FakeGenerator(error=error)).http.post(
        "/v1/chat/completions", json=chat_body(stream=stream)
    )
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == code


def test_overload_tells_when_to_try_again(serve_api: Serve) -> None:
    api = serve_api(FakeGenerator(error=OverloadedError("full", retry_after_s=1.5)))
    assert api.http.post("/v1/chat/completions", json=chat_body()).headers["retry-after"] == "2"


def test_an_internal_failure_tells_no_details(serve_api: Serve) -> None:
    api = serve_api(FakeGenerator(error=RuntimeError("secret path")))
    answer = api.http.post("/v1/chat/completions", json=chat_body())
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"
    assert "secret" not in answer.text


def test_a_failure_mid_stream_becomes_an_error_event(serve_api: Serve) -> None:
    api = serve_api(FakeGenerator(error=EngineStoppedError("gone"), fail_after_rounds=2))
    stream = api.openai.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": "Hello"}], stream=True
    )
    texts: list[str] = []
    with pytest.raises(openai.APIError, match="gone"):
        texts.extend(chunk.choices[0].delta.content or "" for chunk in stream)
    assert "".join(texts)


def test_a_generation_that_ends_without_a_reason_is_an_error(serve_api: Serve) -> None:
    api = serve_api(FakeGenerator(ends_silently=True))
    assert api.http.post("/v1/chat/completions", json=chat_body()).status_code == 503


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("round_s", [0.05, 60.0], ids=["while it generates", "before the first token"])
def test_a_client_that_leaves_stops_its_generations_at_once(
    serve_api: Serve, eventually: Eventually, round_s: float, stream: bool, n: int
) -> None:
    api = serve_api(FakeGenerator(round_s=round_s))
    with socket.create_connection((api.http.base_url.host, api.http.base_url.port)) as client:
        body = json.dumps(chat_body(stream=stream, max_tokens=400, n=n)).encode()
        client.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        eventually(lambda: api.generator.num_running == n)
        if stream and round_s < 1.0:
            assert client.recv(4096).startswith(b"HTTP/1.1 200")
    eventually(lambda: api.generator.num_aborted == n)
    assert api.generator.num_running == 0


def test_one_failed_choice_aborts_the_others(serve_api: Serve) -> None:
    api = serve_api(FakeGenerator(error=EngineStoppedError("gone"), fail_after_rounds=1))
    assert api.http.post("/v1/chat/completions", json=chat_body(n=3)).status_code == 503
    assert api.generator.num_running == 0
    assert api.generator.num_finished == 0


@pytest.mark.parametrize("stream", [False, True])
def test_openai_client_gets_a_chat_s_log_probabilities(api: Api, stream: bool) -> None:
    answer: Any = api.openai.chat.completions.create(
        model="fake",
        messages=[{"role": "user", "content": "Hello"}],
        max_tokens=7,
        logprobs=True,
        top_logprobs=2,
        stream=stream,
    )
    parts = list(answer) if stream else [answer]
    contents = [part.choices[0].logprobs.content for part in parts if part.choices[0].logprobs is not None]
    entries = [entry for content in contents for entry in content]
    assert len(entries) == 7
    assert all(entry.logprob == -20.0 for entry in entries)
    assert [[top.logprob for top in entry.top_logprobs] for entry in entries] == [[-0.5, -1.0]] * 7


@pytest.mark.parametrize("stream", [False, True])
def test_openai_client_gets_an_echoed_prompt_with_log_probabilities(api: Api, stream: bool) -> None:
    answer: Any = api.openai.completions.create(
        model="fake", prompt=["abc", "defg"], max_tokens=4, echo=True, logprobs=1, stream=stream
    )
    choices = [choice for part in (answer if stream else [answer]) for choice in part.choices]
    for index, prompt in enumerate(("abc", "defg")):
        own = [choice for choice in choices if choice.index == index]
        assert "".join(choice.text for choice in own).startswith(prompt)
        tokens = [token for choice in own for token in choice.logprobs.tokens]
        values = [value for choice in own for value in choice.logprobs.token_logprobs]
        offsets = [offset for choice in own for offset in choice.logprobs.text_offset]
        assert "".join(tokens).startswith(prompt)
        assert values == [None] + [-20.0] * (len(prompt) - 1 + 4)
        assert offsets[: len(prompt) + 1] == list(range(len(prompt) + 1))


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_can_be_scored_alone(api: Api, stream: bool) -> None:
    answer: Any = api.openai.completions.create(
        model="fake",
        prompt="abc",
        max_tokens=0,
        echo=True,
        logprobs=0,
        stream=stream,
        extra_body={"stream_options": {"include_usage": True}},
    )
    parts = list(answer) if stream else [answer]
    [choice] = [choice for part in parts for choice in part.choices]
    assert (choice.text, choice.finish_reason) == ("abc", "length")
    assert choice.logprobs.token_logprobs == [None, -20.0, -20.0]
    assert (parts[-1].usage.prompt_tokens, parts[-1].usage.completion_tokens) == (3, 0)


def test_a_prompt_of_ids_is_echoed_as_text(api: Api) -> None:
    ids = byte_tokenizer().encode("xyz")
    answer = api.openai.completions.create(model="fake", prompt=ids, max_tokens=1, echo=True)
    assert answer.choices[0].text.startswith("xyz")


def test_ids_of_tokens_come_where_they_are_asked_for(api: Api) -> None:
    answer = api.http.post("/v1/chat/completions", json=chat_body(return_token_ids=True)).json()
    assert len(answer["choices"][0]["token_ids"]) == 10
    assert tuple(answer["prompt_token_ids"]) == api.generator.requests[-1].prompt_ids
    plain = api.http.post("/v1/chat/completions", json=chat_body()).json()
    assert "token_ids" not in plain["choices"][0]
    assert "prompt_token_ids" not in plain


def test_the_extension_tells_how_choices_were_decoded(api: Api) -> None:
    answer = api.http.post("/v1/chat/completions", json=chat_body(n=2, dspine={"include_stats": True})).json()
    stats = [choice["dspine"]["stats"] for choice in answer["choices"]]
    assert [(s["rounds"], s["verified_tokens"], s["accepted_by_position"][:3]) for s in stats] == [
        (4, 60, [3, 3, 0])
    ] * 2


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("chat/completions", {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ("chat/completions", {"logprobs": 3}, "logprobs"),
        ("chat/completions", {"top_logprobs": 3}, "top_logprobs"),
        ("completions", {"logprobs": True}, "logprobs"),
        ("completions", {"logprobs": 21}, "logprobs"),
        ("completions", {"best_of": 4}, "best_of"),
        ("completions", {"suffix": "end"}, "suffix"),
        ("completions", {"max_tokens": 0}, "max_tokens"),
        ("completions", {"prompt": [2**70], "echo": True}, "prompt"),
        ("completions", {"dspine": {"include_stats": 1}}, "dspine.include_stats"),
        (
            "completions",
            {"stream_options": {"continuous_usage_stats": "yes"}},
            "stream_options.continuous_usage_stats",
        ),
    ],
)
def test_wrong_values_are_refused_by_name(api: Api, path: str, fields: dict[str, object], param: str) -> None:
    body = {"messages": MESSAGES, **fields} if path.startswith("chat") else {"prompt": "x"} | fields
    answer = api.http.post(f"/v1/{path}", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
