from __future__ import annotations

import httpx
import pytest

from dspine_cluster.api.limits import ApiLimits
from dspine_cluster.api.prompting.chat_template import ChatTokenizer
from dspine_cluster.api.routes import create_app
from tests.api.conftest import Api
from tests.api.fakes import VOCAB_SIZE, FakeGenerator, byte_tokenizer


async def post(body: bytes) -> httpx.Response:
    """The answer of a server that takes long prompts."""
    limits = ApiLimits(max_model_len_tokens=200_000, vocab_size=VOCAB_SIZE)
    app = create_app(FakeGenerator(), ChatTokenizer(byte_tokenizer()), "fake", limits)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        return await client.post(
            "/v1/completions", content=body, headers={"Content-Type": "application/json"}
        )


@pytest.mark.parametrize("value", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
def test_numbers_that_are_none_are_refused(api: Api, value: bytes) -> None:
    answer = api.http.post(
        "/v1/completions",
        content=b'{"prompt": "x", "temperature": ' + value + b"}",
        headers={"content-type": "application/json"},
    )
    assert answer.status_code == 400


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages": [' + b",".join([b'{"role":"user","content":""}'] * 33_000) + b"]}",
        b'{"prompt": "x", "metadata": [' + b",".join([b"[]"] * 33_000) + b"]}",
        b'{"prompt": "' + b"[" * 33_000 + b'", "metadata": ' + b"[" * 33_000 + b"]" * 33_000 + b"}",
    ],
    ids=["messages", "lists", "beside a text"],
)
async def test_what_would_take_long_to_look_at_is_refused_before(body: bytes) -> None:
    answer = await post(body)
    assert answer.status_code == 400
    assert "objects and lists" in answer.json()["error"]["message"]


@pytest.mark.parametrize("quoted", [rb"[{", rb"\"[{", rb"\\\"[{"])
async def test_brackets_in_texts_are_not_counted(quoted: bytes) -> None:
    answer = await post(b'{"max_tokens": 1, "prompt": "' + quoted * 20_000 + b'"}')
    assert answer.json()["usage"]["prompt_tokens"] >= 40_000


@pytest.mark.parametrize(
    "field", [rb'"prompt": "\ud800"', rb'"prompt": "x", "stop": "\udfff"', rb'"\udfff": 1']
)
def test_halves_of_surrogate_pairs_are_refused(api: Api, field: bytes) -> None:
    answer = api.http.post(
        "/v1/completions", content=b"{" + field + b"}", headers={"content-type": "application/json"}
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")


def test_whole_surrogate_pairs_are_one_character(api: Api) -> None:
    answer = api.http.post(
        "/v1/completions",
        content=rb'{"prompt": "\ud83d\ude00", "max_tokens": 1}',
        headers={"content-type": "application/json"},
    )
    assert answer.json()["usage"]["prompt_tokens"] == len("😀".encode())
