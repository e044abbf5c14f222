"""Requests whose text does not hang by rounding, with the text that plain decoding gives them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from dspine_cluster.api.chat_schema import ChatMessage
from dspine_cluster.api.prompting.chat_template import ChatTokenizer
from dspine_cluster.config import EngineConfig, ModelSource, VerifierConfig, limit_threads
from dspine_cluster.models.cache import SequenceCache
from dspine_cluster.models.noise import gumbel
from dspine_cluster.models.target import TargetModel
from dspine_cluster.sources import locate_model
from dspine_cluster.types import GenerateRequest, SamplingParams, StopConditions
from dspine_cluster.verifier.loading import LoadedVerifier, load_verifier
from dspine_cluster.verifier.service import VerifierService

MAX_TOKENS = 192
_MIN_MARGIN = 5e-4
"""Of logits; batches of other sizes change them by up to a hundredth of this."""
_TOPICS = ("a tiny otter", "a clever fox", "an old clock", "a busy city")
_CONFIG = VerifierConfig(
    target=ModelSource("miniature"),
    drafter=ModelSource("none"),
    engine=EngineConfig(
        max_model_len_tokens=512, max_running_requests=32, pool_tokens=16384, checkpoint_bytes=0
    ),
)


@dataclass(frozen=True)
class Story:
    prompt: str
    seed: int | None
    """None: greedy."""
    text: str


def make_stories(count: int) -> list[Story]:
    """Half of them greedy, half sampled with a seed."""
    [stories] = make_versions(count, [_CONFIG.target], num_candidates=32)
    return stories


def make_versions(count: int, targets: Sequence[ModelSource], num_candidates: int) -> list[list[Story]]:
    """The same stories as each target tells them; half of them greedy, half sampled with a seed."""
    limit_threads()
    told = [
        {(story.prompt, story.seed): story for story in _tell_all(target, num_candidates)}
        for target in targets
    ]
    common = [key for key in told[0] if all(key in stories for stories in told)]
    greedy = [key for key in common if key[1] is None][: count // 2]
    seeded = [key for key in common if key[1] is not None][: count // 2]
    assert len(greedy) + len(seeded) == count
    return [[stories[key] for key in (*greedy, *seeded)] for stories in told]


def _tell_all(target: ModelSource, num_candidates: int) -> list[Story]:
    config = replace(_CONFIG, target=target)
    loaded = load_verifier(config)
    service = VerifierService(config, loaded)
    service.start()
    try:
        return asyncio.run(_tell(service, loaded, num_candidates))
    finally:
        service.stop()


async def _tell(service: VerifierService, loaded: LoadedVerifier, num_candidates: int) -> list[Story]:
    tokenizer = ChatTokenizer.from_folder(locate_model(_CONFIG.target))
    told = await asyncio.gather(
        *(_story(service, loaded, tokenizer, number) for number in range(num_candidates))
    )
    return [story for story in told if story is not None]


async def _story(
    service: VerifierService, loaded: LoadedVerifier, tokenizer: ChatTokenizer, number: int
) -> Story | None:
    """None where rounding could change the text."""
    prompt = f"Please write a tale, number {number}, about {_TOPICS[number % len(_TOPICS)]}."
    seed = number if number % 2 else None
    encoded = await tokenizer.encode_chat([ChatMessage(role="user", content=prompt)], {})
    request = GenerateRequest(
        request_id=str(number),
        prompt_ids=encoded.token_ids,
        sampling=SamplingParams(temperature=0.0 if seed is None else 1.0, seed=seed),
        stop=StopConditions(MAX_TOKENS, ignore_eos=True),
    )
    outputs = [output async for output in service.generate(request)]
    token_ids = [token for output in outputs for token in output.token_ids]
    if _margin(loaded.engine.target, request, token_ids) < _MIN_MARGIN:
        return None
    return Story(prompt, seed, "".join(output.text for output in outputs))


def _margin(target: TargetModel, request: GenerateRequest, token_ids: Sequence[int]) -> float:
    """How much better the chosen token was than the next best, where that was closest."""
    ids = torch.tensor([*request.prompt_ids, *token_ids[:-1]])
    with torch.no_grad():
        hidden = target(ids, torch.arange(len(ids)), SequenceCache(1, len(ids))).hidden
        logits = target.logits(hidden[len(request.prompt_ids) - 1 :])
    scores = logits.double().log_softmax(-1)  # [num_output, vocab_size]
    if request.sampling.seed is not None:
        places = torch.arange(len(scores))[:, None]
        seeds = torch.full_like(places, request.sampling.seed)
        scores += gumbel(seeds, places, torch.arange(scores.shape[-1]))
    best, second = scores.topk(2).values.unbind(-1)
    return float((best - second).min())
