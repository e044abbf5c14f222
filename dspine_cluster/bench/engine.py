"""Plain decoding through the engine beside transformers' `generate`, on the same prompts in one run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from dspine_cluster.bench.environment import describe_environment
from dspine_cluster.config import DraftingConfig, EngineConfig, VerifierConfig
from dspine_cluster.core.verify_length import FixedVerifyLength
from dspine_cluster.engine.engine import Engine
from dspine_cluster.models.folder import load_tokenizer
from dspine_cluster.models.weights import load_target
from dspine_cluster.sources import locate_model
from dspine_cluster.token_bytes import TokenBytes
from dspine_cluster.types import PAGE_TOKENS, GenerateRequest, SamplingParams, StopConditions
from dspine_cluster.verifier.committed import Committed
from dspine_cluster.verifier.loop import VerifierLoop

PROMPT = "<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n"


def run_engine(batches: Sequence[int], num_tokens: int) -> dict[str, Any]:
    """Generate `num_tokens` greedily for `batch` copies of a prompt, both ways in turn; the best of three each."""
    folder = locate_model(VerifierConfig().target)
    prompt = load_tokenizer(folder).encode(PROMPT).ids
    return {
        "environment": describe_environment(),
        "results": [_compare(folder, [prompt] * batch, num_tokens) for batch in batches],
    }


def _compare(folder: Path, prompts: Sequence[Sequence[int]], num_tokens: int) -> dict[str, Any]:
    ours = _engine_runner(folder, prompts, num_tokens)
    theirs = _transformers_runner(folder, prompts, num_tokens)
    ours_s, theirs_s = [], []
    for _ in range(3):
        ours_s.append(_time(ours))
        theirs_s.append(_time(theirs))
    total = len(prompts) * num_tokens
    return {
        "batch": len(prompts),
        "tokens_per_s": total / min(ours_s),
        "tokens_per_s_transformers": total / min(theirs_s),
        "ratio": min(theirs_s) / min(ours_s),
    }


def _time(run: Callable[[], None]) -> float:
    started_s = time.perf_counter()
    run()
    return time.perf_counter() - started_s


def _engine_runner(folder: Path, prompts: Sequence[Sequence[int]], num_tokens: int) -> Callable[[], None]:
    longest = max(map(len, prompts)) + num_tokens + PAGE_TOKENS  # never below what a configuration may have
    pool_tokens = (longest + PAGE_TOKENS) * len(prompts)
    config = EngineConfig(
        max_model_len_tokens=longest,
        pool_tokens=pool_tokens,
        max_running_requests=len(prompts),
        prefix_cache=False,
    )
    engine = Engine(
        load_target(folder, dtype=torch.float32, device=torch.device("cpu")),
        num_pages=pool_tokens // PAGE_TOKENS,
        num_slots=len(prompts),
    )
    generated = 0

    def count(committed: Sequence[Committed]) -> None:
        nonlocal generated
        generated += sum(len(own.token_ids) for own in committed)

    loop = VerifierLoop(
        engine,
        TokenBytes(load_tokenizer(folder)),
        engine_config=config,
        drafting_config=DraftingConfig(),
        policy=FixedVerifyLength(0),
        block_size=1,
        mask_token_id=None,
        deliver=count,
        on_drafter_lost=lambda endpoint, is_faulty: None,
    )

    def run() -> None:
        nonlocal generated
        generated = 0
        stop = StopConditions(max_tokens=num_tokens, ignore_eos=True)
        for uid, prompt in enumerate(prompts):
            loop.submit(uid, GenerateRequest("bench", tuple(prompt), SamplingParams(temperature=0.0), stop))
        while len(loop.streams):
            loop.step()
        assert generated == num_tokens * len(prompts)

    return run


def _transformers_runner(
    folder: Path, prompts: Sequence[Sequence[int]], num_tokens: int
) -> Callable[[], None]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
    ids = torch.tensor(prompts)

    def run() -> None:
        with torch.inference_mode():
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=num_tokens,
                min_new_tokens=num_tokens,
                do_sample=False,
                pad_token_id=0,
            )

    return run
