from __future__ import annotations

from pathlib import Path

import pytest

from dspine_cluster.errors import CheckpointError
from dspine_cluster.miniature.replacing import replacing


def test_a_file_takes_the_place_of_the_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    for text in ("one", "two"):
        with replacing(path) as beside:
            beside.write_text(text)
    assert path.read_text() == "two"
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_takes_the_place_of_the_earlier_one_with_all_it_held(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    for name in ("one", "two"):
        with replacing(folder) as beside:
            beside.mkdir()
            (beside / name).touch()
    assert [path.name for path in folder.iterdir()] == ["two"]
    assert list(tmp_path.iterdir()) == [folder]


def test_an_interruption_leaves_the_earlier_one_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("earlier")

    def interrupted(beside: Path) -> None:
        beside.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), replacing(path) as beside:
        interrupted(beside)
    assert path.read_text() == "earlier"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "folder.partial").mkdir()
    (tmp_path / "folder.partial" / "half").touch()
    with replacing(tmp_path / "folder") as beside:
        beside.mkdir()
    assert list(tmp_path.rglob("*")) == [tmp_path / "folder"]


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(CheckpointError, match=r"cannot write .*file/below"),
        replacing(tmp_path / "file" / "below"),
    ):
        pass
