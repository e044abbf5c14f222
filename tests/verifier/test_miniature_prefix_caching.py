"""Chats with the committed miniature, through its own chat template."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from dspine_cluster import miniature
from dspine_cluster.api.chat_template import ChatTokenizer
from dspine_cluster.api.schema import ChatMessage
from dspine_cluster.config import EngineConfig, ModelSource, VerifierConfig
from dspine_cluster.core.verify_length import FixedVerifyLength
from dspine_cluster.engine.engine import Engine
from dspine_cluster.types import GenerateRequest
from dspine_cluster.verifier.load import load_tokenizer, load_verifier
from tests.verifier.conversations import num_common
from tests.verifier.decisive import is_decisive
from tests.verifier.harness import MASK, LoopHarness, Result, make_request

SYSTEM = "You are a careful assistant in an office. " * 8
QUESTIONS = ["What is 17 plus 25?", "And what is twice that?", "Write a short poem about the number."]


@pytest.fixture(scope="module")
def engine() -> Engine:
    config = EngineConfig(pool_tokens=8192, max_running_requests=8)
    return load_verifier(VerifierConfig(drafter=ModelSource("none"), engine=config)).engine


def make_loop(engine: Engine, *, prefix_cache: bool) -> LoopHarness:
    return LoopHarness(
        engine.target,
        engine=engine,
        tokenizer=load_tokenizer(miniature.folder("target")),
        policy=FixedVerifyLength(0),
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
