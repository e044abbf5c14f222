"""API keys and limits, as clients meet them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from dspine_cluster.api.http_config import ApiKeyConfig, HttpConfig
from dspine_cluster.api.limits import ApiLimits
from dspine_cluster.api.prompting.chat_template import ChatTokenizer
from dspine_cluster.api.routes import create_app
from tests.api.fakes import VOCAB_SIZE, FakeGenerator, byte_tokenizer

ONE, TWO = "sk-one-0123456789abcdef", "sk-two-0123456789abcdef"
BODY = {"prompt": "Hello there", "max_tokens": 6}


@asynccontextmanager
async def client_of(generator: FakeGenerator, http: HttpConfig) -> AsyncIterator[httpx.AsyncClient]:
    limits = ApiLimits(max_model_len_tokens=512, vocab_size=VOCAB_SIZE)
    app = create_app(generator, ChatTokenizer(byte_tokenizer()), "fake", limits, http)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


def keyed(**limits: float) -> HttpConfig:
    return HttpConfig(api_keys=(ApiKeyConfig("one", ONE, **limits), ApiKeyConfig("two", TWO)))  # type: ignore[arg-type]


async def complete(client: httpx.AsyncClient, key: str = "", **fields: object) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return await client.post("/v1/completions", json=BODY | fields, headers=headers)


@pytest.mark.parametrize("key", ["", "sk-three-0123456789abcdef", "é"])
async def test_without_a_known_key_the_answer_is_401_in_openai_shape(key: str) -> None:
    generator = FakeGenerator()
    async with client_of(generator, keyed()) as client:
        headers = {b"Authorization": b"Bearer " + key.encode("latin-1")} if key else {}
        answer = await client.post("/v1/completions", json=BODY, headers=headers)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert not generator.requests


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
async def test_a_key_may_have_letters_beyond_ascii(encoding: str) -> None:
    key = "schlüssel-0123456789"
    async with client_of(FakeGenerator(), HttpConfig(api_keys=(ApiKeyConfig("one", key),))) as client:
        answer = await client.get("/v1/models", headers={b"Authorization": b"Bearer " + key.encode(encoding)})
    assert answer.status_code == 200


async def test_health_needs_no_key() -> None:
    async with client_of(FakeGenerator(), keyed()) as client:
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/v1/models")).status_code == 401


async def test_without_keys_everybody_is_let_in_as_nobody() -> None:
    generator = FakeGenerator()
    async with client_of(generator, HttpConfig()) as client:
        assert (await complete(client, cache_salt="mine")).status_code == 200
    assert (generator.requests[0].client, generator.requests[0].cache_salt) == ("", "mine")


async def test_keys_never_share_prefixes_whatever_salts_they_choose() -> None:
    generator = FakeGenerator()
    shared = ApiKeyConfig("three", "sk-three-0123456789abcdef", shares_cache=True)
    fourth = ApiKeyConfig("four", "sk-four-0123456789abcdef", shares_cache=True)
    config = HttpConfig(api_keys=(*keyed().api_keys, shared, fourth))
    async with client_of(generator, config) as client:
        for salt in ("", "key:one:", "one:", "key:two:"):
            for key in config.api_keys:
                assert (await complete(client, key.key or "", cache_salt=salt)).status_code == 200
    by_client: dict[str, set[str]] = {}
    for request in generator.requests:
        by_client.setdefault(request.client, set()).add(request.cache_salt)
    assert by_client["one"].isdisjoint(by_client["two"] | by_client["three"])
    assert by_client["two"].isdisjoint(by_client["three"])
    assert by_client["three"] == by_client["four"]


async def test_requests_beyond_a_keys_rate_are_told_when_to_come_back_and_others_are_served() -> None:
    async with client_of(FakeGenerator(), keyed(requests_per_minute=2)) as client:
        statuses = [(await complete(client, ONE)).status_code for _ in range(2)]
        refused = await complete(client, ONE)
        other = await complete(client, TWO)
    assert statuses == [200, 200]
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert 0 < int(refused.headers["Retry-After"]) <= 30
    assert other.status_code == 200


async def test_output_tokens_count_against_a_keys_tokens_a_minute() -> None:
    async with client_of(FakeGenerator(), keyed(tokens_per_minute=60)) as client:
        assert (await complete(client, ONE, max_tokens=200)).status_code == 200
        refused = await complete(client, ONE)
    assert refused.status_code == 429
    assert int(refused.headers["Retry-After"]) > 60


async def test_each_of_n_completions_counts_as_one_at_a_time() -> None:
    rounds = asyncio.Semaphore(0)
    generator = FakeGenerator(rounds=rounds)
    async with client_of(generator, keyed(max_concurrent_requests=3)) as client:
        running = asyncio.create_task(complete(client, ONE, n=2))
        while generator.num_running < 2:
            await asyncio.sleep(0.001)
        assert (await complete(client, ONE, n=2)).status_code == 429
        for _ in range(100):
            rounds.release()
        assert (await running).status_code == 200
        assert (await complete(client, ONE, n=3)).status_code == 200


@pytest.mark.parametrize("http", [keyed(max_concurrent_requests=3), HttpConfig(max_open_requests=3)])
@pytest.mark.parametrize(("asked", "param"), [({"n": 4}, "n"), ({"prompt": ["a"] * 4}, "prompt")])
async def test_more_completions_than_may_ever_run_are_wrong_not_too_early(
    http: HttpConfig, asked: dict[str, Any], param: str
) -> None:
    generator = FakeGenerator()
    async with client_of(generator, http) as client:
        answer = await complete(client, ONE, **asked)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert not generator.requests


async def test_beyond_the_open_requests_of_a_server_the_answer_is_429_and_nothing_begins() -> None:
    rounds = asyncio.Semaphore(0)
    generator = FakeGenerator(rounds=rounds)
    async with client_of(generator, HttpConfig(max_open_requests=4)) as client:
        running = asyncio.create_task(complete(client, n=3))
        while generator.num_running < 3:
            await asyncio.sleep(0.001)
        refused = await complete(client, n=2)
        assert len(generator.requests) == 3
        last = asyncio.create_task(complete(client))
        while generator.num_running < 4:
            await asyncio.sleep(0.001)
        for _ in range(100):
            rounds.release()
        assert (await last).status_code == 200
        assert (await running).status_code == 200
        assert (await complete(client, n=4)).status_code == 200
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
    assert int(refused.headers["Retry-After"]) >= 1


async def test_prompts_that_wait_count_in_tokens_until_their_answers_begin() -> None:
    rounds = asyncio.Semaphore(0)
    generator = FakeGenerator(rounds=rounds)

    async def ask_until_served(client: httpx.AsyncClient) -> int:
        while (answer := await complete(client, prompt="x" * 10)).status_code == 429:
            await asyncio.sleep(0.001)
        return answer.status_code

    async with client_of(generator, HttpConfig(max_waiting_tokens=30)) as client:
        first = asyncio.create_task(complete(client, prompt="x" * 25, max_tokens=30))
        while generator.num_running < 1:
            await asyncio.sleep(0.001)
        assert (await complete(client, prompt="x" * 10)).status_code == 429
        rounds.release()
        second = asyncio.create_task(ask_until_served(client))
        while generator.num_running < 2:
            await asyncio.sleep(0.001)
        for _ in range(100):
            rounds.release()
        assert await second == 200
        assert (await first).status_code == 200


async def test_an_origin_that_is_allowed_may_ask_without_a_key_what_is_allowed() -> None:
    config = HttpConfig(api_keys=keyed().api_keys, cors_origins=("https://chat.example.com",))
    preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    async with client_of(FakeGenerator(), config) as client:
        good = await client.options(
            "/v1/completions", headers={"Origin": "https://chat.example.com", **preflight}
        )
        bad = await client.options("/v1/completions", headers={"Origin": "https://evil.example", **preflight})
    assert good.headers["Access-Control-Allow-Origin"] == "https://chat.example.com"
    assert "Access-Control-Allow-Origin" not in bad.headers
