from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from dspine_cluster.errors import CheckpointError
from dspine_cluster.miniature.checkpoint import CHECKPOINT, Checkpoint, load_trained


def trained(size: int = 3) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(size, size)
    optimizer = torch.optim.AdamW(model.parameters())
    torch.autograd.backward(model(torch.ones(1, size)).sum())
    optimizer.step()
    return model, optimizer


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    model, optimizer = trained()
    Checkpoint(tmp_path, 60).save(model, optimizer, 17)
    other, other_optimizer = trained()
    assert Checkpoint(tmp_path, 60).restore(other, other_optimizer) == 17
    assert torch.equal(next(iter(model.parameters())), next(iter(other.parameters())))


def test_without_a_file_training_starts_at_zero(tmp_path: Path) -> None:
    assert Checkpoint(tmp_path, 60).restore(*trained()) == 0


def test_a_save_cut_short_leaves_the_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = Checkpoint(tmp_path, 60)
    checkpoint.save(*trained(), 1)

    def cut_short(path: Path, content: memoryview) -> None:
        with path.open("wb") as file:
            file.write(content[:100])
        raise OSError("disk full")

    monkeypatch.setattr(Path, "write_bytes", cut_short)
    with pytest.raises(CheckpointError, match="disk full"):
        checkpoint.save(*trained(), 2)
    monkeypatch.undo()
    assert checkpoint.restore(*trained()) == 1
    assert list(tmp_path.iterdir()) == [checkpoint.path]


def test_it_is_due_after_its_time(tmp_path: Path) -> None:
    assert Checkpoint(tmp_path, 0.0).is_due()
    assert not Checkpoint(tmp_path, 60.0).is_due()


def test_a_missing_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"checkpoint\.pt is missing"):
        load_trained(tmp_path, nn.Linear(2, 2))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.9])
def test_a_damaged_file_is_refused_with_what_to_do(tmp_path: Path, share: float) -> None:
    Checkpoint(tmp_path, 60).save(*trained(), 1)
    content = (tmp_path / CHECKPOINT).read_bytes()
    (tmp_path / CHECKPOINT).write_bytes(content[: int(share * len(content))])
    for load in (
        lambda: Checkpoint(tmp_path, 60).restore(*trained()),
        lambda: load_trained(tmp_path, trained()[0]),
    ):
        with pytest.raises(CheckpointError, match="is damaged; delete it"):
            load()


def test_a_model_of_another_shape_is_refused(tmp_path: Path) -> None:
    Checkpoint(tmp_path, 60).save(*trained(), 1)
    with pytest.raises(CheckpointError, match="is of another model"):
        Checkpoint(tmp_path, 60).restore(*trained(size=4))
