"""Tools and reasoning of the miniature, through a real pair in this process."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dspine_cluster import miniature
from dspine_cluster.api.limits import ApiLimits
from dspine_cluster.api.prompting.chat_template import ChatTokenizer
from dspine_cluster.api.routes import create_app
from dspine_cluster.config import EngineConfig, VerifierConfig
from dspine_cluster.local_pair import local_pair
from dspine_cluster.models.folder import load_tokenizer
from dspine_cluster.types import GenerateRequest, RoundOutput
from dspine_cluster.verifier.service import VerifierService

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {key: {"type": "string"} for key in keys},
                "required": keys,
            },
        },
    }
    for name, description, keys in (
        ("create_event", "Add an event to the calendar", ["title", "date", "time"]),
        ("set_reminder", "Remind the user of something", ["text", "day", "time"]),
    )
]


class Recorder:
    """Keeps what the verifier gave."""

    def __init__(self, verifier: VerifierService) -> None:
        self._verifier = verifier
        self.token_ids: list[int] = []

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[RoundOutput, None]:
        self.token_ids = []
        async for output in self._verifier.generate(request):
            self.token_ids += output.token_ids
            yield output

    async def check_health(self) -> None:
        self._verifier.check_health()

    async def check_ready(self) -> None:
        self._verifier.check_health()


@pytest.fixture(scope="module")
def recorder() -> Iterator[Recorder]:
    engine = EngineConfig(max_running_requests=1, pool_tokens=2048, max_model_len_tokens=1024)
    with local_pair(VerifierConfig(engine=engine)) as verifier:
        yield Recorder(verifier)


async def chat(recorder: Recorder, messages: object, **fields: object) -> dict[str, Any]:
    tokenizer = ChatTokenizer.from_folder(miniature.folder("target"))
    app = create_app(recorder, tokenizer, "miniature", ApiLimits(max_model_len_tokens=1024, vocab_size=3072))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://test", timeout=60
    ) as client:
        body = {"messages": messages, "temperature": 0, **fields}
        answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def test_the_miniature_calls_a_tool_with_what_it_was_told(recorder: Recorder) -> None:
    file = Path(__file__).parents[2] / "examples" / "tools.json"
    system, *messages = json.loads(file.read_text())["messages"]
    system["content"] = system["content"].partition("\n")[0]
    answer = await chat(recorder, [system, *messages], tools=TOOLS)
    [choice] = answer["choices"]
    [call] = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert call["function"]["name"] == "set_reminder"
    arguments = json.loads(call["function"]["arguments"])
    assert arguments == {"text": "book a flight", "day": "Sunday", "time": "15:15"}


async def test_reasoning_tokens_are_those_up_to_the_closing_tag(recorder: Recorder) -> None:
    messages = [{"role": "user", "content": "What is 6 times 7?"}]
    answer = await chat(recorder, messages, reasoning_effort="high", max_tokens=200)
    message, details = answer["choices"][0]["message"], answer["usage"]["completion_tokens_details"]
    end_id = load_tokenizer(miniature.folder("target")).token_to_id("</think>")
    assert end_id is not None
    assert details["reasoning_tokens"] == recorder.token_ids.index(end_id) + 1
    assert message["reasoning_content"].strip()
    assert "42" in message["content"]
