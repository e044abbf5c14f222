from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dspine_cluster.errors import CheckpointError
from dspine_cluster.miniature import drafter_loop
from dspine_cluster.miniature.continuations import Continued, read_shards, write_shards
from dspine_cluster.miniature.drafter_loop import DrafterData, DrafterPair, new_drafter, train_drafter
from dspine_cluster.miniature.encoding import Encoder
from dspine_cluster.miniature.losses import drafter_loss
from dspine_cluster.miniature.settings import KINDS, Kind, Settings
from dspine_cluster.models.target import TargetModel


@pytest.fixture(scope="module")
def texts(
    target: TargetModel, encoder: Encoder, settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("continuations")
    write_shards(target, encoder, settings.continuations, settings.target_layer_ids, folder)
    return folder


def test_a_batch_depends_on_its_step_only(texts: Path, settings: Settings) -> None:
    first, second = (
        DrafterData(read_shards(texts, settings.continuations), settings.drafter) for _ in range(2)
    )
    first.batch(0)
    assert torch.equal(first.batch(3).tokens, second.batch(3).tokens)
    assert torch.equal(first.batch(3).anchors, second.batch(3).anchors)


def test_anchors_and_labels_lie_in_the_continuation(texts: Path, settings: Settings) -> None:
    data = DrafterData(read_shards(texts, settings.continuations), settings.drafter)
    for step in range(20):
        batch = data.batch(step)
        assert batch.is_label.gather(1, batch.anchors).all()
        assert batch.is_label.gather(1, batch.anchors + 1).all()
        assert not batch.is_label[:, 0].any()


def test_batches_keep_to_their_tokens(texts: Path, settings: Settings) -> None:
    data = DrafterData(read_shards(texts, settings.continuations), settings.drafter)
    for step in range(20):
        tokens = data.batch(step).tokens
        assert tokens.shape[0] == 1 or tokens.numel() <= settings.drafter.tokens


@pytest.mark.parametrize("kind", KINDS)
def test_interrupted_training_ends_where_uninterrupted_training_does(
    kind: Kind,
    texts: Path,
    target: TargetModel,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = train_drafter(kind, settings, target, texts, tmp_path / "whole").state_dict()
    interrupted = replace(settings, drafter=replace(settings.drafter, checkpoint_every_s=0.0))
    calls = 0

    def fails_in_the_third_step(*args: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return drafter_loss(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(drafter_loop, "drafter_loss", fails_in_the_third_step)
    with pytest.raises(KeyboardInterrupt):
        train_drafter(kind, interrupted, target, texts, tmp_path / "parts")
    monkeypatch.undo()
    parts = train_drafter(kind, interrupted, target, texts, tmp_path / "parts").state_dict()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


@pytest.mark.parametrize("kind", KINDS)
def test_training_lowers_the_loss_and_leaves_the_target_alone(
    kind: Kind, texts: Path, target: TargetModel, settings: Settings, tmp_path: Path
) -> None:
    def loss(pair: DrafterPair) -> float:
        batch = DrafterData(read_shards(texts, settings.continuations), settings.drafter).batch(1000)
        return drafter_loop.batch_loss(pair, batch, 0, settings.drafter).unary.item()

    longer = replace(settings, drafter=replace(settings.drafter, steps=40))
    head = target.lm_head_weight.clone()
    before = loss(new_drafter(kind, settings, target))
    assert loss(train_drafter(kind, longer, target, texts, tmp_path)) < before - 0.1
    assert torch.equal(target.lm_head_weight, head)


def test_both_kinds_start_from_the_same_backbone(target: TargetModel, settings: Settings) -> None:
    dspine, dflash = (new_drafter(kind, settings, target).state_dict() for kind in KINDS)
    shared = [name for name in dflash if "layers" in name or "projector" in name]
    assert shared
    assert all(torch.equal(dflash[name], dspine[name]) for name in shared)


def test_a_training_can_start_from_the_model_of_another(
    texts: Path, target: TargetModel, settings: Settings, tmp_path: Path
) -> None:
    earlier = train_drafter("dspine", settings, target, texts, tmp_path / "earlier").state_dict()
    no_steps = replace(settings, drafter=replace(settings.drafter, steps=0))
    started = train_drafter("dspine", no_steps, target, texts, tmp_path / "new", tmp_path / "earlier")
    assert all(torch.equal(earlier[name], value) for name, value in started.state_dict().items())


def test_a_start_of_another_kind_is_refused(
    texts: Path, target: TargetModel, settings: Settings, tmp_path: Path
) -> None:
    train_drafter("dflash", settings, target, texts, tmp_path / "dflash")
    with pytest.raises(CheckpointError, match="is of another model"):
        train_drafter("dspine", settings, target, texts, tmp_path / "dspine", tmp_path / "dflash")


def test_continuations_too_short_to_learn_from_are_refused(settings: Settings) -> None:
    states = torch.zeros(3, 4, dtype=torch.bfloat16)
    with pytest.raises(CheckpointError, match="no continuation has two tokens"):
        DrafterData([Continued(torch.arange(3), 2, states, states)], settings.drafter)
