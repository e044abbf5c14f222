from __future__ import annotations

import multiprocessing
import threading
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch

from dspine_cluster import miniature
from dspine_cluster.errors import CheckpointError
from dspine_cluster.miniature import target_training
from dspine_cluster.miniature.checkpoint import CHECKPOINT
from dspine_cluster.miniature.encoding import Encoder
from dspine_cluster.miniature.settings import Settings
from dspine_cluster.miniature.target_training import (
    STEPS_PER_STREAM,
    new_target,
    train_target,
    training_batches,
    weighted_loss,
)

TOKENIZER = miniature.folder("target")


def weights_after(folder: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(folder / CHECKPOINT, weights_only=True)["model"]
    return state


def test_the_batch_of_a_step_does_not_depend_on_where_training_began(
    encoder: Encoder, settings: Settings
) -> None:
    chosen = settings.target
    whole = list(islice(training_batches(encoder, chosen, 0, STEPS_PER_STREAM - 3), 6))
    later = list(islice(training_batches(encoder, chosen, 0, STEPS_PER_STREAM + 1), 2))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(whole[4:], later, strict=True))


def test_processes_read_different_batches(encoder: Encoder, settings: Settings) -> None:
    first, second = (next(training_batches(encoder, settings.target, process, 0))[0] for process in (0, 1))
    assert not torch.equal(first, second)


def test_some_steps_read_long_sequences(encoder: Encoder, settings: Settings) -> None:
    chosen = replace(settings.target, long_every=3, repetition_steps=0, repetition_every=100)
    lengths = [tokens.shape[1] - 1 for tokens, _ in islice(training_batches(encoder, chosen, 0, 0), 6)]
    assert lengths == [64, 64, 128, 64, 64, 128]


def test_interrupted_training_ends_where_uninterrupted_training_does(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_target(settings, TOKENIZER, tmp_path / "whole")
    interrupted = replace(settings, target=replace(settings.target, checkpoint_every_s=0.0))
    calls = 0

    def fails_in_the_third_step(*args: object) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return weighted_loss(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(target_training, "weighted_loss", fails_in_the_third_step)
    with pytest.raises(KeyboardInterrupt):
        train_target(interrupted, TOKENIZER, tmp_path / "parts")
    monkeypatch.undo()
    train_target(interrupted, TOKENIZER, tmp_path / "parts")
    whole, parts = weights_after(tmp_path / "whole"), weights_after(tmp_path / "parts")
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_training_lowers_the_loss(encoder: Encoder, settings: Settings, tmp_path: Path) -> None:
    longer = replace(settings, target=replace(settings.target, steps=40))
    tokens, weights = next(training_batches(encoder, longer.target, 5, 1))
    model = new_target(longer, TOKENIZER)
    before = weighted_loss(model, tokens, weights).item()
    train_target(longer, TOKENIZER, tmp_path)
    model.load_state_dict(weights_after(tmp_path))
    assert weighted_loss(model, tokens, weights).item() < before - 0.5


def test_two_processes_train_one_model(settings: Settings, tmp_path: Path) -> None:
    both = replace(settings, target=replace(settings.target, steps=2, processes=2))
    train_target(both, TOKENIZER, tmp_path)
    assert torch.load(tmp_path / CHECKPOINT, weights_only=True)["step"] == 2
    assert "step 2/2" in (tmp_path / "log.txt").read_text()


def test_a_damaged_checkpoint_is_refused_by_the_processes_in_one_line(
    settings: Settings, tmp_path: Path
) -> None:
    both = replace(settings, target=replace(settings.target, processes=2))
    (tmp_path / CHECKPOINT).write_bytes(b"half")
    with pytest.raises(CheckpointError, match=r"^[^\n]*checkpoint\.pt is damaged; delete it[^\n]*$"):
        train_target(both, TOKENIZER, tmp_path)


def test_when_a_process_is_killed_the_others_end_and_what_to_do_is_said(
    settings: Settings, tmp_path: Path
) -> None:
    long = replace(settings, target=replace(settings.target, steps=1_000_000, processes=2))

    def kill_one() -> None:
        while not (tmp_path / "log.txt").exists():
            time.sleep(0.1)
        multiprocessing.active_children()[0].kill()

    killer = threading.Thread(target=kill_one, daemon=True)
    killer.start()
    with pytest.raises(CheckpointError, match="was killed; start again"):
        train_target(long, TOKENIZER, tmp_path)
    killer.join()
    assert not multiprocessing.active_children()


def test_only_weighted_tokens_count(encoder: Encoder, settings: Settings) -> None:
    model = new_target(settings, TOKENIZER)
    tokens, weights = next(training_batches(encoder, settings.target, 0, 0))
    weights[:, 40:] = 0.0
    changed = tokens.clone()
    changed[:, 41:] = 5
    assert torch.equal(weighted_loss(model, tokens, weights), weighted_loss(model, changed, weights))
