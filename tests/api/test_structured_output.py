"""Structured output of the miniature, as the `openai` client gets it from a real server over a real pair."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from pydantic import BaseModel, Field

from dspine_cluster import miniature
from dspine_cluster.api.limits import ApiLimits
from dspine_cluster.api.prompting.chat_template import ChatTokenizer
from dspine_cluster.api.routes import create_app
from dspine_cluster.config import EngineConfig, VerifierConfig
from dspine_cluster.local_pair import local_pair
from tests.api.conftest import listening
from tests.api.test_miniature_tool_use import Recorder

MODEL = "miniature"
USER: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Invent a cup."}]


class Cup(BaseModel):
    colour: Literal["red", "blue"]
    litres: int = Field(ge=0, le=9)
    owners: list[Literal["Ann", "Bob"]] = Field(max_length=2)


TOOLS: list[ChatCompletionToolParam] = [
    {"type": "function", "function": {"name": name, "parameters": Cup.model_json_schema()}}
    for name in ("paint", "fill")
]


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    engine = EngineConfig(max_running_requests=4, pool_tokens=4096, max_model_len_tokens=1024)
    tokenizer = ChatTokenizer.from_folder(miniature.folder("target"))
    limits = ApiLimits(max_model_len_tokens=1024, vocab_size=3072)
    with (
        local_pair(VerifierConfig(engine=engine)) as verifier,
        listening(create_app(Recorder(verifier), tokenizer, MODEL, limits)) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def test_an_answer_is_parsed_into_a_model(client: openai.OpenAI) -> None:
    for seed in range(3):
        answer = client.chat.completions.parse(
            model=MODEL, messages=USER, response_format=Cup, seed=seed, max_tokens=100
        )
        assert answer.choices[0].finish_reason == "stop"
        assert isinstance(answer.choices[0].message.parsed, Cup)


def test_the_form_follows_the_reasoning(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": "What is 6 times 7?"}],
        response_format=Cup,
        reasoning_effort="high",
        temperature=0,
        max_tokens=400,
    )
    message = answer.choices[0].message
    assert isinstance(message.parsed, Cup)
    assert (message.model_extra or {})["reasoning_content"].strip()


@pytest.mark.parametrize("choice", ["required", "paint", "fill"])
def test_calls_are_forced(client: openai.OpenAI, choice: str) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "What is 6 times 7?"}],
        tools=TOOLS,
        tool_choice="required"
        if choice == "required"
        else {"type": "function", "function": {"name": choice}},
        parallel_tool_calls=False,
        seed=1,
    )
    [call] = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name in (["paint", "fill"] if choice == "required" else [choice])
    assert Cup.model_validate_json(call.function.arguments)
    assert answer.choices[0].message.content is None
    assert answer.choices[0].finish_reason == "tool_calls"


def test_streams_have_the_form_too(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=USER,
        stream=True,
        seed=5,
        extra_body={"structured_outputs": {"regex": "[A-Z][a-z]{2,9} is (red|blue)\\."}},
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text.endswith(("is red.", "is blue."))


def test_a_text_completion_is_one_of_the_choices(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt="6 * 7 =", n=4, extra_body={"structured_outputs": {"choice": ["42", "forty"]}}
    )
    assert {choice.text for choice in answer.choices} <= {"42", "forty"}


@pytest.mark.parametrize(
    ("asked", "param", "cause"),
    [
        ({"regex": "(a"}, "structured_outputs", "parenthesis"),
        ({"grammar": "root ::= x"}, "structured_outputs", "not defined"),
        ({"json": {"type": "nothing"}}, "structured_outputs.json", "nothing"),
    ],
)
def test_what_cannot_be_compiled_is_a_bad_request(
    client: openai.OpenAI, asked: dict[str, object], param: str, cause: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=cause) as caught:
        client.chat.completions.create(
            model=MODEL, messages=USER, stream=True, extra_body={"structured_outputs": asked}
        )
    assert (caught.value.param, caught.value.type) == (param, "invalid_request_error")
