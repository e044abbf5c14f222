"""A target on two ranks gives the tokens of one, and never outlives or survives a lost rank unnoticed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from dspine_cluster.config import DraftingConfig, EngineConfig, ModelSource, VerifierConfig
from dspine_cluster.engine.ranks.followers import Followers
from dspine_cluster.errors import CheckpointError, ConfigError, EngineStoppedError
from dspine_cluster.local_pair import local_pair
from dspine_cluster.models.folder import load_tokenizer
from dspine_cluster.sources import locate_model
from dspine_cluster.types import GenerateRequest, OutputGrammar, SamplingParams, StopConditions
from dspine_cluster.verifier.loading import load_verifier
from dspine_cluster.verifier.service import VerifierService
from tests.engine.grammar_cases import regex, structural_tag

MINIATURE = ModelSource("miniature")
# Pages for three of the requests below: some are preempted.
CONFIG = VerifierConfig(
    engine=EngineConfig(max_model_len_tokens=192, pool_tokens=480, max_running_requests=6),
    drafting=DraftingConfig(verify="fixed:15"),
)
SPLIT = replace(CONFIG, engine=replace(CONFIG.engine, tensor_parallel=2))
NUM_REQUESTS = 6
MAX_TOKENS = 32


def requests(sampling: SamplingParams) -> list[GenerateRequest]:
    tokenizer = load_tokenizer(locate_model(MINIATURE))
    start = "Please write a short note to the office about the meeting in room "
    prompts = [tokenizer.encode(f"{start * 8}{number}. ").ids for number in range(NUM_REQUESTS)]
    stop = StopConditions(max_tokens=MAX_TOKENS, ignore_eos=True)
    return [GenerateRequest(str(i), tuple(prompt), sampling, stop) for i, prompt in enumerate(prompts)]


async def generate(service: VerifierService, wanted: Sequence[GenerateRequest]) -> list[list[int]]:
    async def one(request: GenerateRequest) -> list[int]:
        return [token async for output in service.generate(request) for token in output.token_ids]

    return await asyncio.gather(*map(one, wanted))


@pytest.fixture(scope="module")
def expected() -> dict[SamplingParams, list[list[int]]]:
    """Of plain decoding on one rank."""
    with local_pair(replace(CONFIG, drafter=ModelSource("none"))) as service:
        return {
            sampling: asyncio.run(generate(service, requests(sampling)))
            for sampling in (SamplingParams(temperature=0), SamplingParams(temperature=1, seed=5))
        }


@pytest.fixture(scope="module")
def split() -> Iterator[VerifierService]:
    with local_pair(SPLIT) as service:
        yield service


def test_two_ranks_give_the_tokens_of_one(
    split: VerifierService, expected: dict[SamplingParams, list[list[int]]]
) -> None:
    for sampling, texts in expected.items():
        for _ in range(2):  # the second time from cached prefixes
            assert asyncio.run(generate(split, requests(sampling))) == texts
    stats = split.stats()
    assert stats["accepted_tokens_total"] > 0
    assert stats["preemptions_total"] > 0
    assert stats["cached_prompt_tokens_total"] > 0


def test_beside_requests_that_leave_and_one_with_a_grammar_two_ranks_give_the_tokens_of_one(
    split: VerifierService, expected: dict[SamplingParams, list[list[int]]]
) -> None:
    sampling = SamplingParams(temperature=1, seed=5)

    async def leave(request: GenerateRequest) -> None:
        async for output in split.generate(request):
            if output.token_ids:
                return

    async def written(request: GenerateRequest) -> str:
        return "".join([output.text async for output in split.generate(request)])

    async def all_at_once() -> tuple[list[list[int]], str]:
        leaving = [
            replace(request, request_id=f"leaves {request.request_id}") for request in requests(sampling)
        ]
        grammar = OutputGrammar(structural_tag(regex("[a-z]{4}-[0-9]{3}")), "response_format")
        bound = replace(leaving[0], request_id="bound", grammar=grammar)
        gone = asyncio.gather(*map(leave, leaving))
        texts, text = await asyncio.gather(generate(split, requests(sampling)), written(bound))
        await gone
        return texts, text

    texts, text = asyncio.run(all_at_once())
    assert texts == expected[sampling]
    assert re.fullmatch("[a-z]{4}-[0-9]{3}", text)


def followers() -> set[psutil.Process]:
    return {child for child in psutil.Process().children() if "ranks.follower" in str(child.cmdline())}


def check_health_for_long(service: VerifierService) -> None:
    """Once is not enough where a rank's threads end one after the other."""
    while True:
        service.check_health()
        time.sleep(0.01)


def test_a_lost_rank_fails_requests_and_the_health_check_and_leaves_no_process() -> None:
    others = followers()
    loaded = load_verifier(replace(SPLIT, drafter=ModelSource("none")))
    service = VerifierService(SPLIT, loaded)
    service.start()
    (follower,) = followers() - others
    service.check_health()
    os.kill(follower.pid, signal.SIGKILL)
    with pytest.raises(EngineStoppedError, match="rank 1 of the target ended with code -9"):
        check_health_for_long(service)
    with pytest.raises(EngineStoppedError):
        asyncio.run(generate(service, requests(SamplingParams(temperature=0))))
    service.stop()
    assert not follower.is_running()


def test_a_rank_that_is_lost_in_the_middle_of_passes_ends_every_request() -> None:
    others = followers()
    service = VerifierService(SPLIT, load_verifier(replace(SPLIT, drafter=ModelSource("none"))))
    service.start()
    (follower,) = followers() - others

    async def outlive(request: GenerateRequest) -> None:
        async for output in service.generate(request):
            if output.token_ids and follower.is_running():
                follower.kill()

    async def all_at_once() -> list[BaseException | None]:
        return await asyncio.gather(
            *map(outlive, requests(SamplingParams(temperature=0))), return_exceptions=True
        )

    ends = asyncio.run(all_at_once())
    service.stop()
    assert {type(end) for end in ends} == {EngineStoppedError}


def test_what_keeps_a_rank_from_loading_is_told(tmp_path: Path) -> None:
    ranks = Followers(tmp_path, dtype="float32", device=torch.device("cpu"), num_ranks=2)
    with pytest.raises(CheckpointError, match=r"rank 1 of the target: .*config\.json"):
        ranks.join()
    ranks.close()


def test_a_target_that_does_not_divide_is_refused_before_any_process_starts() -> None:
    others = followers()
    config = replace(SPLIT, engine=replace(SPLIT.engine, tensor_parallel=4))
    with pytest.raises(ConfigError, match=r"tensor_parallel 4 does not divide .*num_key_value_heads 2"):
        load_verifier(config)
    assert followers() == others
