"""Train the target on the mix: processes with one thread each, resumable to the very step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, spawn

from dspine_cluster.errors import CheckpointError
from dspine_cluster.miniature.checkpoint import Checkpoint
from dspine_cluster.miniature.data.conversation import Split
from dspine_cluster.miniature.data.mixture import documents
from dspine_cluster.miniature.data.repetition import repetitions
from dspine_cluster.miniature.encoding import Encoder, batches
from dspine_cluster.miniature.initialisation import initialise
from dspine_cluster.miniature.optimizer import MuonAdamW, lr_scale
from dspine_cluster.miniature.runlog import log
from dspine_cluster.miniature.settings import Settings, TargetSettings
from dspine_cluster.miniature.tokenizer import END_OF_MESSAGE, END_OF_TEXT, token_id
from dspine_cluster.models.cache import SequenceCache
from dspine_cluster.models.folder import load_tokenizer
from dspine_cluster.models.qwen3_5 import make_qwen3_5
from dspine_cluster.models.target import TargetModel

STEPS_PER_STREAM = 50

_spawn: Callable[..., object] = spawn
"""Runs a function in several processes: ends all when one fails or the caller is gone. torch gives it no types."""

Batches = Iterator[tuple[Tensor, Tensor]]
"""(tokens, weights) of each step, as `encoding.batches` gives them."""


def new_target(settings: Settings, tokenizer_folder: Path) -> TargetModel:
    """A freshly initialised target for the tokenizer in the folder; the same weights every time."""
    tokenizer = load_tokenizer(tokenizer_folder)
    eos = (token_id(tokenizer, END_OF_MESSAGE), token_id(tokenizer, END_OF_TEXT))
    model = make_qwen3_5(settings.target_config(eos))
    initialise(model, torch.Generator().manual_seed(settings.target.seed))
    return model


def weighted_loss(model: TargetModel, tokens: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean of the next-token losses of tokens and weights `[num_sequences, length + 1]`."""
    num_sequences, length = tokens.shape[0], tokens.shape[1] - 1
    positions = torch.arange(length).repeat(num_sequences)
    cache = SequenceCache(num_sequences, length)
    out = model(tokens[:, :-1].reshape(-1), positions, cache)
    losses = F.cross_entropy(
        model.logits(out.hidden), tokens[:, 1:].reshape(-1), reduction="none"
    )  # [num_tokens]
    counted = weights[:, 1:].reshape(-1)
    return (losses * counted).sum() / counted.sum()


def training_batches(encoder: Encoder, settings: TargetSettings, process: int, start_step: int) -> Batches:
    """The batch of every step from `start_step` on. It depends on seed, process and step only."""
    step = start_step
    while True:
        stream, offset = divmod(step, STEPS_PER_STREAM)
        seed = (settings.seed * 1_000_003 + stream) * 64 + process
        short = _encoded_batches(encoder, seed, settings.tokens_per_process, settings.length)
        long = _encoded_batches(encoder, ~seed, settings.tokens_per_process, settings.long_length)
        repeated = _repeated_batches(encoder, seed, settings)
        for inside in range(STEPS_PER_STREAM):
            batch = next(_choose(stream * STEPS_PER_STREAM + inside, settings, short, long, repeated))
            if inside >= offset:
                yield batch
                step += 1


def _choose(step: int, settings: TargetSettings, short: Batches, long: Batches, repeated: Batches) -> Batches:
    """What a step reads: only repetitions at first, then now and then, and long sequences now and then."""
    if step < settings.repetition_steps or step % settings.repetition_every == 0:
        return repeated
    return long if step % settings.long_every == settings.long_every - 1 else short


def _repeated_batches(encoder: Encoder, seed: int, settings: TargetSettings) -> Batches:
    rng = Random(seed)
    num_words = encoder.tokenizer.get_vocab_size(with_added_tokens=False)
    return repetitions(rng, num_words, settings.tokens_per_process, settings.repetition_length)


def _encoded_batches(encoder: Encoder, seed: int, num_tokens: int, length: int) -> Batches:
    encoded = (encoder.document(d) for d in documents(seed, Split.TRAIN))
    return batches(encoded, num_tokens // length, length)


def train_target(settings: Settings, tokenizer_folder: Path, folder: Path) -> None:
    """Train from scratch or from the folder's checkpoint until `settings.target.steps`; logs to `folder/log.txt`.

    Raises:
        CheckpointError: the tokenizer or the checkpoint cannot be read or written, or a process was killed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    processes = settings.target.processes
    if processes == 1:
        _train(0, settings, tokenizer_folder, folder)
        return
    (folder / "meeting_point").unlink(missing_ok=True)
    try:
        _spawn(_train, (settings, tokenizer_folder, folder), processes, daemon=True)
    except ProcessExitedException as error:
        raise CheckpointError(f"a training process was killed; start again to go on from {folder}") from error
    except ProcessRaisedException as error:
        kind, _, message = str(error).strip().splitlines()[-1].partition(": ")
        if kind.endswith(CheckpointError.__name__):
            raise CheckpointError(message) from error
        raise


def _train(process: int, settings: Settings, tokenizer_folder: Path, folder: Path) -> None:
    torch.set_num_threads(1)
    chosen = settings.target
    if chosen.processes > 1:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{(folder / 'meeting_point').resolve()}",
            rank=process,
            world_size=chosen.processes,
        )
    model = new_target(settings, tokenizer_folder)
    optimizer = MuonAdamW(
        model, matrix_lr=chosen.matrix_lr, embedding_lr=chosen.embedding_lr, other_lr=chosen.other_lr
    )
    checkpoint = Checkpoint(folder, chosen.checkpoint_every_s)
    start_step = checkpoint.restore(model, optimizer)
    encoder = Encoder(load_tokenizer(tokenizer_folder))
    stream = training_batches(encoder, chosen, process, start_step)
    losses: list[float] = []
    started_at = time.monotonic()
    for step in range(start_step, chosen.steps):
        tokens, weights = next(stream)
        loss = weighted_loss(model, tokens, weights)
        torch.autograd.backward(loss)
        norm = optimizer.step(lr_scale(step, chosen.steps, chosen.warmup_steps, chosen.decay_share))
        losses.append(loss.item())
        finished = step + 1
        if process:
            continue
        if finished % 20 == 0 or finished == chosen.steps:
            speed = len(losses) / (time.monotonic() - started_at)
            tokens_per_s = speed * chosen.processes * chosen.tokens_per_process
            mean = sum(losses[-20:]) / len(losses[-20:])
            minutes_left = (chosen.steps - finished) / speed / 60
            log(
                folder,
                f"step {finished}/{chosen.steps} loss {mean:.4f} norm {norm:.2f} {tokens_per_s:.0f} tokens/s "
                f"{minutes_left:.1f} min left",
            )
        if finished % chosen.evaluate_every == 0 or finished == chosen.steps:
            log(folder, f"step {finished} held-out loss {held_out_loss(model, encoder, chosen):.4f}")
        if checkpoint.is_due() or finished == chosen.steps:
            checkpoint.save(model, optimizer, finished)
    if chosen.processes > 1:
        dist.destroy_process_group()


@torch.no_grad()
def held_out_loss(model: TargetModel, encoder: Encoder, settings: TargetSettings) -> float:
    """Loss on documents from held-out templates and files."""
    encoded = (encoder.document(d) for d in documents(settings.seed, Split.HELD_OUT))
    tokens, weights = next(
        batches(encoded, 2 * settings.tokens_per_process // settings.length, settings.length)
    )
    return weighted_loss(model, tokens, weights).item()
