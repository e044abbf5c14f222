"""`python -m dspine_serve.live_routing --json FILE`: routing measured on two Ray nodes of this machine.

`dspine bench routing` runs it. Conversations with shared system prompts go over HTTP to the miniature.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from dspine_cluster.bench.live_trace import (
    LiveAnswer,
    LiveConversation,
    LiveSettings,
    make_live_trace,
    summarise_live,
)
from dspine_serve.local_cluster import LocalCluster, local_cluster, small_args

_TIMEOUT_S = 600.0
_Message = dict[str, str]


def measure_live(cluster: LocalCluster, settings: LiveSettings) -> dict[str, Any]:
    """What `settings` give on a running cluster."""
    before = _placement_counters(cluster)
    answers = asyncio.run(run_trace(cluster.url, make_live_trace(settings), settings.max_tokens))
    return summarise_live(answers, before, _placement_counters(cluster))


async def run_trace(url: str, trace: Sequence[LiveConversation], max_tokens: int) -> list[LiveAnswer]:
    """Every conversation at its time, each turn after the answer to the last one.

    Raises:
        httpx.HTTPError: a request failed.
    """
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=_TIMEOUT_S, limits=limits) as client:
        conversations = [_converse(client, conversation, max_tokens) for conversation in trace]
        return [answer for answers in await asyncio.gather(*conversations) for answer in answers]


async def _converse(
    client: httpx.AsyncClient, conversation: LiveConversation, max_tokens: int
) -> list[LiveAnswer]:
    messages: list[_Message] = [{"role": "system", "content": conversation.system}]
    answers = []
    for turn in conversation.turns:
        await asyncio.sleep(turn.gap_s)
        messages.append({"role": "user", "content": turn.content})
        text, answer = await _ask(client, messages, max_tokens)
        messages.append({"role": "assistant", "content": text})
        answers.append(answer)
    return answers


async def _ask(
    client: httpx.AsyncClient, messages: list[_Message], max_tokens: int
) -> tuple[str, LiveAnswer]:
    """A greedy answer, read event by event."""
    body = {
        "model": "miniature",
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started_s = time.monotonic()
    ttft_s: float | None = None
    text, usage = "", dict[str, Any]()
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for event in _events(response):
            for choice in event["choices"]:
                text += choice["delta"].get("content") or ""
            usage = event.get("usage") or usage
            if text and ttft_s is None:
                ttft_s = time.monotonic() - started_s
    return text, LiveAnswer(
        ttft_s=time.monotonic() - started_s if ttft_s is None else ttft_s,
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
        output_tokens=usage["completion_tokens"],
    )


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        data = line.removeprefix("data: ")
        if data and data != "[DONE]":
            event = json.loads(data)
            if "error" in event:
                raise httpx.HTTPError(event["error"]["message"])
            yield event


def _placement_counters(cluster: LocalCluster) -> Counter[str]:
    """Of all ingresses together."""
    total: Counter[str] = Counter()
    for stats in cluster.stats("Ingress"):
        total.update({name: int(value) for name, value in stats.items()})
    return total


def main() -> None:
    defaults = LiveSettings()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="write the report here")
    parser.add_argument("--conversations", type=int, default=defaults.num_conversations)
    parser.add_argument("--seed", type=int, default=defaults.seed)
    arguments = parser.parse_args()
    settings = LiveSettings(num_conversations=arguments.conversations, seed=arguments.seed)
    with local_cluster(small_args(2), 2) as cluster:
        cluster.wait_until_whole()
        report = measure_live(cluster, settings)
    arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
