"""What caches give to the later turns of conversations, beside cold runs of the same prompts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from statistics import median
from typing import Any

from dspine_cluster.api.chat_schema import ChatMessage
from dspine_cluster.api.prompting.chat_template import ChatTokenizer
from dspine_cluster.bench.environment import describe_environment
from dspine_cluster.bench.statistics import ratio_interval
from dspine_cluster.config import VerifierConfig
from dspine_cluster.local_pair import local_pair
from dspine_cluster.miniature.data.conversation import Split
from dspine_cluster.miniature.data.history import QUESTION_TASKS, exchange
from dspine_cluster.miniature.data.mixture import TASKS
from dspine_cluster.sources import locate_model
from dspine_cluster.types import CHUNK_GRID_TOKENS, GenerateRequest, SamplingParams, StopConditions, Usage
from dspine_cluster.verifier.service import VerifierService

_NUM_EARLIER = 2
_WARM_UP = GenerateRequest(
    "warm-up", (1,) * 16, SamplingParams(temperature=0.0), StopConditions(max_tokens=32, ignore_eos=True)
)


@dataclass(frozen=True, slots=True)
class Script:
    """A conversation before the model has answered."""

    history: list[ChatMessage]
    """Exchanges that have taken place already."""
    questions: list[str]


@dataclass(frozen=True, slots=True)
class Turn:
    """A request of a conversation and its answer."""

    request: GenerateRequest
    num_common: int
    """Tokens that the prompt has in common with an earlier turn, prompt and answer, of the same conversation."""
    token_ids: tuple[int, ...]
    text: str
    usage: Usage
    ttft_s: float


def held_out_conversations(count: int, num_turns: int, seed: int) -> list[Script]:
    """Conversations on the miniature's held-out tasks; equal arguments give equal ones."""
    rng = Random(f"conversations {seed}")

    def past() -> list[ChatMessage]:
        messages = [message for _ in range(_NUM_EARLIER) for message in exchange(rng, Split.HELD_OUT)]
        return [ChatMessage(role=message["role"], content=message["content"]) for message in messages]

    def question() -> str:
        content: str = TASKS[rng.choice(QUESTION_TASKS)](rng, Split.HELD_OUT).prompt[-1]["content"]
        return content

    return [Script(past(), [question() for _ in range(num_turns)]) for _ in range(count)]


def run_turns(
    config: VerifierConfig, scripts: Sequence[Script], max_tokens: int, done: Callable[[], None]
) -> dict[str, Any]:
    """Hold every conversation with thinking and without, turn by turn over all of them; then send the same prompts to
    a pair that caches nothing. `done` is called after each answer.

    Greedy and one request at a time, so that nothing but the caches makes a difference.
    """
    tokenizer = ChatTokenizer.from_folder(locate_model(config.target))
    modes = (True, False)
    with local_pair(config) as verifier:
        warm = {
            thinks: asyncio.run(_converse(verifier, tokenizer, scripts, thinks, max_tokens, done))
            for thinks in modes
        }
    uncached = replace(config, engine=replace(config.engine, prefix_cache=False))
    with local_pair(uncached) as verifier:
        cold = {thinks: asyncio.run(_repeat(verifier, warm[thinks], done)) for thinks in modes}
    results = [
        {"thinking": thinks, "conversations": len(scripts)} | _compare(warm[thinks], cold[thinks])
        for thinks in modes
    ]
    pooled = _compare([*warm[True], *warm[False]], [*cold[True], *cold[False]])
    return {"environment": describe_environment(), "results": results, "pooled": pooled}


async def _converse(
    verifier: VerifierService,
    tokenizer: ChatTokenizer,
    scripts: Sequence[Script],
    thinks: bool,
    max_tokens: int,
    done: Callable[[], None],
) -> list[Turn]:
    """The later turns of all conversations."""
    await _answer(verifier, _WARM_UP, 0)
    messages = [list(script.history) for script in scripts]
    seen: list[list[tuple[int, ...]]] = [[] for _ in scripts]
    later = []
    for number in range(len(scripts[0].questions)):
        for index, script in enumerate(scripts):
            messages[index].append(ChatMessage(role="user", content=script.questions[number]))
            prompt = await tokenizer.encode_chat(messages[index], {"enable_thinking": thinks})
            request = GenerateRequest(
                "bench",
                prompt.token_ids,
                SamplingParams(temperature=0.0),
                StopConditions(max_tokens=max_tokens),
                message_boundaries=prompt.message_boundaries,
                cache_salt=f"{thinks}",
            )
            num_common = max(map(partial(_num_common, prompt.token_ids), seen[index]), default=0)
            turn = await _answer(verifier, request, num_common)
            done()
            seen[index].append(prompt.token_ids + turn.token_ids)
            answer = turn.text.rpartition("</think>")[2].strip()
            messages[index].append(ChatMessage(role="assistant", content=answer))
            if number > 0:
                later.append(turn)
    return later


async def _repeat(verifier: VerifierService, turns: Sequence[Turn], done: Callable[[], None]) -> list[Turn]:
    await _answer(verifier, _WARM_UP, 0)
    repeated = []
    for turn in turns:
        repeated.append(await _answer(verifier, turn.request, turn.num_common))
        done()
    return repeated


async def _answer(verifier: VerifierService, request: GenerateRequest, num_common: int) -> Turn:
    tokens: list[int] = []
    text = ""
    started_s = time.perf_counter()
    ttft_s = None
    async for output in verifier.generate(request):
        ttft_s = ttft_s or time.perf_counter() - started_s
        tokens += output.token_ids
        text += output.text
    assert ttft_s is not None
    return Turn(request, num_common, tuple(tokens), text, output.usage, ttft_s)


def _num_common(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((position for position, (a, b) in pairs if a != b), min(len(one), len(other)))


def _compare(warm: Sequence[Turn], cold: Sequence[Turn]) -> dict[str, Any]:
    """Acceptance lengths are pooled; a turn without a round counts in neither."""
    expected = [max(0, turn.num_common - CHUNK_GRID_TOKENS) for turn in warm]
    cached = [turn.usage.cached_prompt_tokens for turn in warm]
    (a, b), (c, d) = _columns(warm), _columns(cold)
    return {
        "turns": len(warm),
        "prompt_tokens": sum(turn.usage.prompt_tokens for turn in warm),
        "common_tokens": sum(turn.num_common for turn in warm),
        "cached_tokens": sum(cached),
        "min_cached_over_common_less_64": min(
            (have / want for have, want in zip(cached, expected, strict=True) if want), default=None
        ),
        "texts_that_differ": sum(w.token_ids != c.token_ids for w, c in zip(warm, cold, strict=True)),
        "rounds": [sum(b), sum(d)],
        "acceptance_length": sum(a) / sum(b),
        "acceptance_length_cold": sum(c) / sum(d),
        "acceptance_ratio": (sum(a) / sum(b)) / (sum(c) / sum(d)),
        "acceptance_ratio_ci95": list(ratio_interval((a, b), (c, d))),
        "ttft_p50_s": median(turn.ttft_s for turn in warm),
        "ttft_cold_p50_s": median(turn.ttft_s for turn in cold),
    }


def _columns(turns: Sequence[Turn]) -> tuple[list[float], list[float]]:
    """(tokens committed by rounds, rounds) of each turn."""
    return [float(len(turn.token_ids) - 1) for turn in turns], [
        float(turn.usage.num_rounds) for turn in turns
    ]
