"""The drafters' training text: prompts continued by the target, with the target states that drafters learn from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dspine_cluster.errors import CheckpointError
from dspine_cluster.miniature.data.conversation import Conversation, Split
from dspine_cluster.miniature.data.history import long_prompt
from dspine_cluster.miniature.data.mixture import documents
from dspine_cluster.miniature.decoding import SamplingPlan, sample
from dspine_cluster.miniature.encoding import Encoder
from dspine_cluster.miniature.replacing import replacing
from dspine_cluster.miniature.settings import ContinuationSettings
from dspine_cluster.miniature.templating import render_prompt
from dspine_cluster.models.cache import SequenceCache
from dspine_cluster.models.target import TargetModel

THINKING_SHARE = 0.1
TEXT_PROMPT_TOKENS = (24, 160)
MAX_PROMPT_TOKENS = 448
LONG_BATCH_SIZE = 16
"""Long prompts are sampled so many at a time: their attention masks are large."""


@dataclass(frozen=True, slots=True)
class Continued:
    """The end of a prompt with its continuation; n tokens in all."""

    tokens: Tensor  # int64 [n]
    num_prompt_tokens: int
    taps: Tensor  # bfloat16 [n, num_tapped * hidden_size]
    hidden: Tensor  # bfloat16 [n, hidden_size], after the final norm


def prompts(encoder: Encoder, seed: int) -> Iterator[list[int]]:
    """Endless prompts from the training mix: conversations cut before one of their answers, and plain text."""
    rng = Random(seed)
    for document in documents(seed, Split.TRAIN):
        if isinstance(document, Conversation):
            answers = [i for i, m in enumerate(document.messages) if m["role"] == "assistant"]
            cut = Conversation(document.messages[: rng.choice(answers) + 1], document.tools)
            tokens = encoder.encode(render_prompt(cut, enable_thinking=rng.random() < THINKING_SHARE))
        else:
            tokens = encoder.encode(document)[: rng.randint(*TEXT_PROMPT_TOKENS)]
        if 0 < len(tokens) <= MAX_PROMPT_TOKENS:
            yield tokens


def long_prompts(encoder: Encoder, seed: int, num_tokens: tuple[int, int]) -> Iterator[list[int]]:
    """Endless prompts that end a conversation of other exchanges, `num_tokens` at least and at most."""
    rng = Random(seed)

    def encode(conversation: Conversation) -> list[int]:
        return encoder.encode(render_prompt(conversation, enable_thinking=rng.random() < THINKING_SHARE))

    while True:
        yield long_prompt(rng, Split.TRAIN, num_tokens, encode)


def write_shards(
    model: TargetModel,
    encoder: Encoder,
    settings: ContinuationSettings,
    tapped_layers: tuple[int, ...],
    folder: Path,
    *,
    first: int = 0,
    stride: int = 1,
) -> None:
    """Write every `stride`-th shard from `first` on, one batch of prompts each; existing shards stay.

    Raises:
        CheckpointError: a shard cannot be written.
    """
    first_long = num_shards(settings) - settings.long_prompts // settings.batch_size
    for shard in range(first, num_shards(settings), stride):
        path = shard_path(folder, shard)
        if path.is_file():
            continue
        seed = settings.seed * 1_000_003 + shard
        is_long = shard >= first_long
        stream = long_prompts(encoder, seed, settings.long_tokens) if is_long else prompts(encoder, seed)
        batch = [next(stream) for _ in range(settings.batch_size)]
        size = LONG_BATCH_SIZE if is_long else settings.batch_size
        generator = torch.Generator().manual_seed(seed)
        continuations = []
        for start in range(0, len(batch), size):
            rows = range(start, min(start + size, len(batch)))
            hot = torch.tensor([settings.temperatures[i % len(settings.temperatures)] for i in rows])
            plan = SamplingPlan(settings.max_new_tokens, hot, generator)
            continuations += sample(model, batch[start : start + size], plan)
        _save(model, list(zip(batch, continuations, strict=True)), tapped_layers, settings.kept_tokens, path)


def num_shards(settings: ContinuationSettings) -> int:
    """How many shards hold all prompts."""
    return -(-settings.prompts // settings.batch_size)


def shard_path(folder: Path, shard: int) -> Path:
    return folder / f"shard_{shard:05d}.safetensors"


def read_shards(folder: Path, settings: ContinuationSettings) -> list[Continued]:
    """All continuations, in the order of the shards.

    Raises:
        CheckpointError: a shard is missing or damaged.
    """
    paths = [shard_path(folder, shard) for shard in range(num_shards(settings))]
    if missing := [path for path in paths if not path.is_file()]:
        raise CheckpointError(
            f"{len(missing)} of {len(paths)} shards are missing in {folder}, first {missing[0].name}; run the "
            "continuations stage to its end, all its processes"
        )
    return [text for path in paths for text in _read(path)]


@torch.inference_mode()
def target_states(
    model: TargetModel, tokens: Tensor, tapped_layers: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """(taps, hidden) of one sequence of token ids `[n]`, as `Continued` holds them but in the model's dtype."""
    out = model(tokens, torch.arange(len(tokens)), SequenceCache(1, len(tokens)), tapped_layers)
    assert out.taps is not None
    return out.taps, out.hidden


def _save(
    model: TargetModel,
    pairs: list[tuple[list[int], list[int]]],
    tapped_layers: tuple[int, ...],
    kept_tokens: int,
    path: Path,
) -> None:
    cuts = [max(0, len(prompt) - kept_tokens) for prompt, _ in pairs]
    whole = [torch.tensor(prompt + continuation) for prompt, continuation in pairs]
    states = [
        [rows[cut:] for rows in target_states(model, tokens, tapped_layers)]
        for tokens, cut in zip(whole, cuts, strict=True)
    ]
    texts = [tokens[cut:] for tokens, cut in zip(whole, cuts, strict=True)]
    prompt_lengths = [len(prompt) - cut for (prompt, _), cut in zip(pairs, cuts, strict=True)]
    shard = {
        "tokens": torch.cat(texts).int(),
        "lengths": torch.tensor([len(tokens) for tokens in texts]),
        "prompt_lengths": torch.tensor(prompt_lengths),
        "taps": torch.cat([taps for taps, _ in states]).bfloat16(),
        "hidden": torch.cat([hidden for _, hidden in states]).bfloat16(),
    }
    with replacing(path) as beside:
        save_file(shard, beside)


def _read(path: Path) -> list[Continued]:
    try:
        shard = load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{path} is damaged; delete it and run the continuations stage, which writes it anew"
        ) from error
    lengths = shard["lengths"].tolist()
    parts = [torch.split(shard[name], lengths) for name in ("tokens", "taps", "hidden")]
    return [
        Continued(tokens.long(), num_prompt_tokens, taps, hidden)
        for tokens, taps, hidden, num_prompt_tokens in zip(
            *parts, shard["prompt_lengths"].tolist(), strict=True
        )
    ]
