"""What answers tell of tokens, through a real pair in this process and through the same target alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from dspine_cluster import miniature
from dspine_cluster.api.limits import ApiLimits
from dspine_cluster.api.prompting.chat_template import ChatTokenizer
from dspine_cluster.api.routes import create_app
from dspine_cluster.bench.schemas import fits
from dspine_cluster.config import DraftingConfig, EngineConfig, ModelSource, VerifierConfig
from dspine_cluster.local_pair import local_pair
from dspine_cluster.verifier.service import VerifierService

QUESTION = "What is 6 times 7?"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "tags": {"type": "array", "maxItems": 2}},
    "required": ["name", "tags"],
}
FORM = {"type": "json_schema", "json_schema": {"name": "cup", "schema": SCHEMA}}
TOOL = {"type": "function", "function": {"name": "fill", "parameters": SCHEMA}}
SAMPLINGS = [{"temperature": 0}, {"temperature": 1, "seed": 3}]


@pytest.fixture(scope="module")
def services() -> Iterator[tuple[VerifierService, VerifierService]]:
    """With a drafter, and without."""
    engine = EngineConfig(max_running_requests=4, pool_tokens=2048, max_model_len_tokens=512)
    drafting = DraftingConfig(verify="fixed:15", first_deadline_s=5.0)
    with (
        local_pair(VerifierConfig(engine=engine, drafting=drafting)) as pair,
        local_pair(VerifierConfig(engine=engine, drafter=ModelSource("none"))) as alone,
    ):
        yield pair, alone


async def post(verifier: VerifierService, path: str, **body: object) -> dict[str, Any]:
    return dict(json.loads(await text_of(verifier, path, **body)))


async def text_of(verifier: VerifierService, path: str, **body: object) -> str:
    tokenizer = ChatTokenizer.from_folder(miniature.folder("target"))
    app = create_app(Unchanged(verifier), tokenizer, "miniature", ApiLimits(512, vocab_size=3072))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://test", timeout=60
    ) as client:
        answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.text


class Unchanged:
    """A verifier as the interface takes it."""

    def __init__(self, verifier: VerifierService) -> None:
        self._verifier = verifier
        self.generate = verifier.generate

    async def check_health(self) -> None:
        self._verifier.check_health()

    async def check_ready(self) -> None:
        self._verifier.check_health()


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "seeded"])
async def test_a_chat_s_are_those_of_the_target_alone(
    services: tuple[VerifierService, VerifierService], sampling: dict[str, Any]
) -> None:
    body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 24, **sampling}
    body |= {"logprobs": True, "top_logprobs": 3, "n": 2}
    drafted, plain = [await post(service, "/v1/chat/completions", **body) for service in services]
    assert drafted["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] > 0
    contents = [
        [entry for choice in answer["choices"] for entry in choice["logprobs"]["content"]]
        for answer in (drafted, plain)
    ]
    assert len(contents[0]) == drafted["usage"]["completion_tokens"]
    for one, other in zip(*contents, strict=True):
        assert (one["token"], one["bytes"]) == (other["token"], other["bytes"])
        assert one["logprob"] == pytest.approx(other["logprob"], abs=1e-4)
        values = [[top["logprob"] for top in entry["top_logprobs"]] for entry in (one, other)]
        assert values[0] == pytest.approx(values[1], abs=1e-4)


@pytest.mark.parametrize(
    "asked",
    [
        {"response_format": FORM, "repetition_penalty": 1.3, "frequency_penalty": 0.5, "temperature": 0},
        {
            "response_format": FORM,
            "temperature": 1,
            "seed": 5,
            "stop": [": "],
            "include_stop_str_in_output": True,
        },
        {"response_format": FORM, "temperature": 1, "seed": 5, "bad_words": ["name", "{"], "min_tokens": 10},
        {"tools": [TOOL], "tool_choice": "required", "logit_bias": {"300": 100, "5": -100}, "temperature": 0},
        {
            "structured_outputs": {"regex": "[a-z]{3}( [a-z]{2,9}){6}"},
            "presence_penalty": 2,
            "temperature": 0,
        },
    ],
)
async def test_structured_output_and_its_logprobs_are_those_of_the_target_alone(
    services: tuple[VerifierService, VerifierService], asked: dict[str, Any]
) -> None:
    body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 60, **asked}
    body |= {"logprobs": True, "top_logprobs": 2}
    drafted, plain = [await post(service, "/v1/chat/completions", **body) for service in services]
    [one], [other] = drafted["choices"], plain["choices"]
    assert one["finish_reason"] == other["finish_reason"]
    assert one["message"]["content"] == other["message"]["content"]
    arguments = [call["function"]["arguments"] for call in one["message"].get("tool_calls", ())]
    assert arguments == [call["function"]["arguments"] for call in other["message"].get("tool_calls", ())]
    for entry, expected in zip(one["logprobs"]["content"], other["logprobs"]["content"], strict=True):
        assert entry["token"] == expected["token"]
        values = [[top["logprob"] for top in (e, *e["top_logprobs"])] for e in (entry, expected)]
        assert values[0] == pytest.approx(values[1], abs=1e-4)
    if one["finish_reason"] != "length" and "stop" not in asked and "regex" not in str(asked):
        for text in arguments or [one["message"]["content"]]:
            assert fits(text, SCHEMA)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "seeded"])
async def test_an_echoed_text_s_are_those_of_the_target_alone_cached_or_not(
    services: tuple[VerifierService, VerifierService], sampling: dict[str, Any]
) -> None:
    prompt = f"<|im_start|>user\n{QUESTION * 12}<|im_end|>\n<|im_start|>assistant\n"
    body = {"prompt": prompt, "max_tokens": 24, "logprobs": 2, "echo": True, **sampling}
    pair, alone = services
    await post(pair, "/v1/completions", prompt=prompt, max_tokens=1)
    drafted, plain = await post(pair, "/v1/completions", **body), await post(alone, "/v1/completions", **body)
    assert drafted["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    [one], [other] = drafted["choices"], plain["choices"]
    assert one["text"] == other["text"]
    assert one["text"].startswith(prompt)
    usage = drafted["usage"]
    assert len(one["logprobs"]["tokens"]) == usage["prompt_tokens"] + usage["completion_tokens"]
    for key in ("tokens", "text_offset"):
        assert one["logprobs"][key] == other["logprobs"][key]
    values = [choice["logprobs"]["token_logprobs"] for choice in (one, other)]
    assert values[0][0] is None
    assert values[0][1:] == pytest.approx(values[1][1:], abs=1e-4)


async def test_statistics_and_origins_sum_to_the_usage(
    services: tuple[VerifierService, VerifierService],
) -> None:
    answer = await post(
        services[0],
        "/v1/chat/completions",
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        stop=["Answer"],
        n=3,
        dspine={"include_stats": True, "include_origins": True},
    )
    usage, details = answer["usage"], answer["usage"]["completion_tokens_details"]
    told = [choice["dspine"] for choice in answer["choices"]]
    accepted = details["accepted_prediction_tokens"]
    assert sum(sum(one["stats"]["accepted_by_position"]) for one in told) == accepted > 0
    verified = accepted + details["rejected_prediction_tokens"]
    assert sum(sum(one["stats"]["verified_by_position"]) for one in told) == verified
    tokens = [token for one in told for token in one["tokens"]]
    assert len(tokens) == usage["completion_tokens"]
    assert sum(token["accepted"] for token in tokens) == accepted
    rounds = sum(one["stats"]["rounds"] for one in told)
    committed = sum(one["stats"]["acceptance_length"] * one["stats"]["rounds"] for one in told)
    assert committed == pytest.approx(usage["completion_tokens"] - 3)
    assert committed <= accepted + rounds
    for choice, one in zip(answer["choices"], told, strict=True):
        text = "".join(token["text"] for token in one["tokens"])
        assert text.startswith(choice["message"]["content"] + "Answer")


async def test_usage_so_far_ends_with_the_whole(services: tuple[VerifierService, VerifierService]) -> None:
    body = {"model": "miniature", "messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
    whole = await post(services[0], "/v1/chat/completions", **body)
    options = {"include_usage": True, "continuous_usage_stats": True}
    text = await text_of(services[0], "/v1/chat/completions", **body, stream=True, stream_options=options)
    *lines, done = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert done == "[DONE]"
    events = [json.loads(line) for line in lines]
    counts = [event["usage"]["completion_tokens"] for event in events if event["usage"] is not None]
    assert len(counts) == len(events) - 1  # not with the role
    assert counts == sorted(counts)
    assert counts[-1] == whole["usage"]["completion_tokens"]
