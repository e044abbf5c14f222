"""Train the target on the mix: processes with one thread each, resumable to the very step."""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from dspine_cluster.errors import CheckpointError
from dspine_cluster.miniature.checkpoint import Checkpoint
from dspine_cluster.miniature.data.conversation import Split
from dspine_cluster.miniature.data.mixture import documents
from dspine_cluster.miniature.encoding import Encoder, batches
from dspine_cluster.miniature.optimizer import MuonAdamW, lr_scale
from dspine_cluster.miniature.runlog import log
from dspine_cluster.miniature.settings import Settings, TargetSettings
from dspine_cluster.miniature.tokenizer import END_OF_MESSAGE, END_OF_TEXT, load_tokenizer, token_id
from dspine_cluster.models.cache import SequenceCache
from dspine_cluster.models.qwen3_5 import make_qwen3_5
from dspine_cluster.models.target import TargetModel

STEPS_PER_STREAM = 50
CHECKPOINT = "checkpoint.pt"


def new_target(settings: Settings, tokenizer_folder: Path) -> TargetModel:
    """A freshly initialised target for the tokenizer in the folder; the same weights every time."""
    tokenizer = load_tokenizer(tokenizer_folder)
    eos = (token_id(tokenizer, END_OF_MESSAGE), token_id(tokenizer, END_OF_TEXT))
    model = make_qwen3_5(settings.target_config(eos))
    initialise(model, torch.Generator().manual_seed(settings.target.seed))
    return model


@torch.no_grad()
def initialise(model: TargetModel, generator: torch.Generator) -> None:
    """Matrices of standard deviation 1/sqrt(inputs), smaller where they write to the residual stream.

    Decay starts between slow and fast: A in 1..16 and softplus(dt_bias) in 0.001..0.1 (Gated DeltaNet's own choice).
    """
    shrink = 1 / math.sqrt(2 * model.config.num_layers)
    for name, parameter in model.named_parameters():
        if name.endswith("A_log"):
            parameter.uniform_(1.0, 16.0, generator=generator).log_()
        elif name.endswith("dt_bias"):
            dt = parameter.uniform_(math.log(0.001), math.log(0.1), generator=generator).exp()
            parameter.copy_(dt + torch.log(-torch.expm1(-dt)))
        elif "embed_tokens" in name:
            parameter.normal_(0.0, 0.3, generator=generator)
        elif "lm_head" in name:
            parameter.normal_(0.0, 0.02, generator=generator)
        elif name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
            parameter.normal_(0.0, shrink / math.sqrt(parameter.shape[1]), generator=generator)
        elif parameter.ndim >= 2:
            inputs = parameter[0].numel()
            parameter.normal_(0.0, 1 / math.sqrt(inputs), generator=generator)


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


def training_batches(
    encoder: Encoder, settings: TargetSettings, process: int, start_step: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """The batch of every step from `start_step` on. It depends on seed, process and step only."""
    step = start_step
    while True:
        stream, offset = divmod(step, STEPS_PER_STREAM)
        seed = (settings.seed * 1_000_003 + stream) * 64 + process
        short = _encoded_batches(encoder, seed, settings.tokens_per_process, settings.length)
        long = _encoded_batches(encoder, ~seed, settings.tokens_per_process, settings.long_length)
        for inside in range(STEPS_PER_STREAM):
            is_long = (stream * STEPS_PER_STREAM + inside) % settings.long_every == settings.long_every - 1
            batch = next(long if is_long else short)
            if inside >= offset:
                yield batch
                step += 1


def _encoded_batches(
    encoder: Encoder, seed: int, num_tokens: int, length: int
) -> Iterator[tuple[Tensor, Tensor]]:
    encoded = (encoder.document(d) for d in documents(seed, Split.TRAIN))
    return batches(encoded, num_tokens // length, length)


def train_target(settings: Settings, tokenizer_folder: Path, folder: Path) -> None:
    """Train from scratch or from the folder's checkpoint until `settings.target.steps`; logs to `folder/log.txt`."""
    folder.mkdir(parents=True, exist_ok=True)
    processes = settings.target.processes
    if processes == 1:
        _train(0, settings, tokenizer_folder, folder)
        return
    meeting_point = folder / "meeting_point"
    meeting_point.unlink(missing_ok=True)
    spawn = multiprocessing.get_context("spawn")
    workers = [
        spawn.Process(target=_train, args=(i, settings, tokenizer_folder, folder)) for i in range(processes)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        raise CheckpointError(f"a training process failed; start again to go on from {folder / CHECKPOINT}")


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
    checkpoint = Checkpoint(folder / CHECKPOINT, chosen.checkpoint_every_s)
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
