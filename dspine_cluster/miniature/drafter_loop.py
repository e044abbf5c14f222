"""Train one drafter on the target's continuations: one process with one thread, resumable to the very step."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from torch import Tensor, nn

from dspine_cluster.errors import CheckpointError
from dspine_cluster.miniature.checkpoint import Checkpoint, load_trained
from dspine_cluster.miniature.continuations import Continued, read_shards
from dspine_cluster.miniature.drafter_training import training_forward
from dspine_cluster.miniature.losses import (
    DrafterLoss,
    alignment_weight,
    drafter_loss,
    replacement_probability,
)
from dspine_cluster.miniature.optimizer import MuonAdamW, lr_scale
from dspine_cluster.miniature.runlog import log
from dspine_cluster.miniature.settings import DrafterSettings, Kind, Settings
from dspine_cluster.models.drafter import Drafter
from dspine_cluster.models.drafter_init import build_drafter, build_feature_projector
from dspine_cluster.models.drafter_layers import FeatureProjector
from dspine_cluster.models.target import TargetModel

LOG_EVERY = 20
NEIGHBOURS = 128
"""A batch is drawn from so many texts of neighbouring lengths, so that it wastes little on padding."""


@dataclass(frozen=True, slots=True)
class DrafterBatch:
    """Texts padded on the right to the longest, and the anchors to draft from."""

    tokens: Tensor  # int64 [S, T]
    taps: Tensor  # float32 [S, T, num_tapped * hidden_size]
    hidden: Tensor  # float32 [S, T, hidden_size]
    anchors: Tensor  # int64 [S, A]
    is_label: Tensor  # bool [S, T]: continuation, not prompt and not padding


class DrafterPair(nn.Module):
    """The drafter and the projector that makes its features, trained together."""

    def __init__(self, drafter: Drafter, projector: FeatureProjector) -> None:
        super().__init__()
        self.drafter = drafter
        self.projector = projector


def new_drafter(kind: Kind, settings: Settings, target: TargetModel) -> DrafterPair:
    """An untrained drafter for `target`; both kinds start from the same backbone."""
    config = settings.drafter_config(kind)
    drafter = build_drafter(
        config, embedding=target.embedding_weight, lm_head=target.lm_head_weight, seed=settings.drafter.seed
    )
    return DrafterPair(drafter, build_feature_projector(config, seed=settings.drafter.seed + 1))


class DrafterData:
    """Batches of continuations. The batch of a step depends on seed and step only, the same for either drafter.

    Raises:
        CheckpointError: no text has room for an anchor and a label.
    """

    def __init__(self, texts: list[Continued], settings: DrafterSettings) -> None:
        usable = [t for t in texts if len(t.tokens) - t.num_prompt_tokens >= 2]
        if not usable:
            raise CheckpointError(
                "no continuation has two tokens; train the target longer and write them anew"
            )
        self.by_length = sorted(usable, key=lambda t: len(t.tokens))
        self.settings = settings

    def batch(self, step: int) -> DrafterBatch:
        """Texts of about equal length, `settings.tokens` together; anchors uniform over their continuations."""
        rng = Random(f"{self.settings.seed} {step}")
        start = rng.randrange(max(1, len(self.by_length) - NEIGHBOURS + 1))
        neighbours = self.by_length[start : start + NEIGHBOURS]
        length = len(neighbours[-1].tokens)
        chosen = rng.sample(neighbours, k=min(len(neighbours), max(1, self.settings.tokens // length)))
        length = max(len(t.tokens) for t in chosen)
        num_anchors = max(1, self.settings.blocks // len(chosen))
        anchors = [
            [rng.randint(t.num_prompt_tokens, len(t.tokens) - 2) for _ in range(num_anchors)] for t in chosen
        ]
        return DrafterBatch(
            tokens=_padded([t.tokens for t in chosen], length),
            taps=_padded([t.taps.float() for t in chosen], length),
            hidden=_padded([t.hidden.float() for t in chosen], length),
            anchors=torch.tensor(anchors),
            is_label=_padded([torch.arange(len(t.tokens)) >= t.num_prompt_tokens for t in chosen], length),
        )


def train_drafter(
    kind: Kind,
    settings: Settings,
    target: TargetModel,
    continuations: Path,
    folder: Path,
    start: Path | None = None,
) -> DrafterPair:
    """Train until `settings.drafter.steps`, from the folder's checkpoint where there is one; logs to `folder/log.txt`.

    Args:
        start: the folder of another training of the same kind, whose model a new one starts from; None starts from
            scratch.

    Raises:
        CheckpointError: continuations are missing or damaged, `start` holds no checkpoint of this kind, or the folder's
            is damaged or of another model.
    """
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    chosen = settings.drafter
    data = DrafterData(read_shards(continuations, settings.continuations), chosen)
    pair = new_drafter(kind, settings, target)
    if start is not None:
        load_trained(start, pair)
    optimizer = MuonAdamW(
        pair,
        matrix_lr=chosen.matrix_lr * chosen.rate,
        embedding_lr=0.0,
        other_lr=chosen.other_lr * chosen.rate,
    )
    checkpoint = Checkpoint(folder, chosen.checkpoint_every_s)
    start_step = checkpoint.restore(pair, optimizer)
    started_at = time.monotonic()
    shown: list[Tensor] = []
    for step in range(start_step, chosen.steps):
        loss = batch_loss(pair, data.batch(step), step, chosen)
        torch.autograd.backward(loss.total)
        optimizer.step(lr_scale(step, chosen.steps, chosen.warmup_steps, chosen.decay_share))
        shown.append(torch.stack((loss.unary, loss.refined, loss.alignment)).detach())
        finished = step + 1
        if finished % LOG_EVERY == 0 or finished == chosen.steps:
            unary, refined, alignment = torch.stack(shown).mean(0).tolist()
            shown.clear()
            speed = (finished - start_step) / (time.monotonic() - started_at)
            log(
                folder,
                f"step {finished}/{chosen.steps} unary {unary:.4f} refined {refined:.4f} alignment {alignment:.4f} "
                f"{speed:.2f} steps/s {(chosen.steps - finished) / speed / 60:.1f} min left",
            )
        if checkpoint.is_due() or finished == chosen.steps:
            checkpoint.save(pair, optimizer, finished)
    return pair


def batch_loss(pair: DrafterPair, batch: DrafterBatch, step: int, settings: DrafterSettings) -> DrafterLoss:
    """The objective of one batch at a step of the training, which sets its schedules."""
    features = pair.projector(batch.taps)
    rng = torch.Generator().manual_seed(settings.seed * 1_000_003 + step)
    probability = replacement_probability(step, settings.steps)
    replaced = torch.rand(batch.anchors.shape, generator=rng) < probability
    output = training_forward(
        pair.drafter, features, batch.tokens, batch.anchors, label_mask=batch.is_label, replaced=replaced
    )
    return drafter_loss(pair.drafter, output, batch.hidden, alignment_weight(step))


def _padded(rows: list[Tensor], length: int) -> Tensor:
    """Rows of unequal length stacked, zeros on the right."""
    out = rows[0].new_zeros(len(rows), length, *rows[0].shape[1:])
    for target, row in zip(out, rows, strict=True):
        target[: len(row)] = row
    return out
