"""Chats with the committed miniature, through its own chat template."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from dspine_cluster import miniature
from dspine_cluster.api.chat_schema import ChatMessage
from dspine_cluster.api.prompting.chat_template import ChatTokenizer
from dspine_cluster.config import DrafterServiceConfig, EngineConfig, VerifierConfig
from dspine_cluster.core.verify_length import FixedVerifyLength
from dspine_cluster.drafter.loading import load_drafter_replica
from dspine_cluster.engine.engine import Engine
from dspine_cluster.models.drafter import Drafter
from dspine_cluster.models.folder import load_tokenizer
from dspine_cluster.types import GenerateRequest
from dspine_cluster.verifier.loading import load_verifier
from tests.verifier.conversations import num_common
from tests.verifier.decisive import is_decisive
from tests.verifier.harness import LoopHarness, Result, make_request
from tests.verifier.real_drafter import drive

MASK = 3071
SYSTEM = "You are a careful assistant in an office. " * 8
QUESTIONS = ["What is 17 plus 25?", "And what is twice that?", "Write a short poem about the number."]


@pytest.fixture(scope="module")
def engine() -> Engine:
    return load_verifier(VerifierConfig(engine=EngineConfig(pool_tokens=8192, max_running_requests=8))).engine


@pytest.fixture(scope="module")
def drafter() -> Drafter:
    drafter, _ = load_drafter_replica(DrafterServiceConfig(endpoints=("unix:/unused",)))
    return drafter


def make_loop(engine: Engine, *, prefix_cache: bool, drafter: Drafter | None = None) -> LoopHarness:
    return LoopHarness(
        engine.target,
        engine=engine,
        tokenizer=load_tokenizer(miniature.folder("target")),
        policy=FixedVerifyLength(15 if drafter else 0),
        channel=drive(drafter, num_pages=512) if drafter else None,
        mask_token_id=MASK,
        max_model_len_tokens=4096,
        pool_tokens=8192,
        prefill_chunk_tokens=256,
        max_batch_tokens=1024,
        prefix_cache=prefix_cache,
    )


def chat(harness: LoopHarness, *, enable_thinking: bool) -> list[tuple[GenerateRequest, Result]]:
    """A conversation: each turn's request and what it gave."""
    tokenizer = ChatTokenizer.from_folder(miniature.folder("target"))
    messages = [ChatMessage(role="system", content=SYSTEM)]
    turns = []
    for question in QUESTIONS:
        messages.append(ChatMessage(role="user", content=question))
        prompt = asyncio.run(tokenizer.encode_chat(messages, {"enable_thinking": enable_thinking}))
        request = replace(
            make_request(prompt.token_ids, max_tokens=48), message_boundaries=prompt.message_boundaries
        )
        (result,) = harness.generate([request])
        turns.append((request, result))
        messages.append(ChatMessage(role="assistant", content=result.text.rpartition("</think>")[2].strip()))
    return turns


@pytest.mark.parametrize("enable_thinking", [True, False], ids=["thinking", "not thinking"])
def test_later_turns_of_a_chat_are_cached_and_give_the_text_of_a_cold_run(
    engine: Engine, enable_thinking: bool
) -> None:
    turns = chat(make_loop(engine, prefix_cache=True), enable_thinking=enable_thinking)
    seen: list[list[int]] = []
    for request, result in turns:
        longest = max((num_common(request.prompt_ids, earlier) for earlier in seen), default=0)
        cached = result.outputs[-1].usage.cached_prompt_tokens
        assert cached >= 0.95 * longest - 64
        assert (cached > 0) == bool(seen)
        seen.append([*request.prompt_ids, *result.token_ids])
    cold = make_loop(engine, prefix_cache=False).generate([request for request, _ in turns])
    decisive = [
        (warm, expected)
        for (request, warm), expected in zip(turns, cold, strict=True)
        if is_decisive(engine.target, request, expected.token_ids, MASK)
    ]
    assert len(decisive) >= 2
    assert all(
        (warm.token_ids, warm.text) == (expected.token_ids, expected.text) for warm, expected in decisive
    )


def test_later_turns_accept_as_much_as_cold_runs(engine: Engine, drafter: Drafter) -> None:
    """Thinking and not, within 2 %: what a drafter finds cached is as good as what it computes."""
    turns = [
        turn
        for enable_thinking in (True, False)
        for turn in chat(
            make_loop(engine, prefix_cache=True, drafter=drafter), enable_thinking=enable_thinking
        )[1:]
    ]
    harness = make_loop(engine, prefix_cache=False, drafter=drafter)
    cold = [harness.generate([request])[0] for request, _ in turns]
    assert all(result.outputs[-1].usage.cached_prompt_tokens > 0 for _, result in turns)
    assert acceptance_length([result for _, result in turns]) == pytest.approx(
        acceptance_length(cold), rel=0.02
    )
    assert acceptance_length(cold) > 1.5


def acceptance_length(results: Sequence[Result]) -> float:
    """Tokens that a round committed, over all."""
    rounds = sum(result.outputs[-1].usage.num_rounds for result in results)
    return sum(len(result.token_ids) - 1 for result in results) / rounds
