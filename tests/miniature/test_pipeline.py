from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dspine_cluster import miniature
from dspine_cluster.errors import CheckpointError
from dspine_cluster.miniature.pipeline import Recipe
from dspine_cluster.miniature.settings import KINDS, Settings


@pytest.fixture(scope="module")
def finished(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """All stages for a handful of steps, with the committed tokenizer."""
    recipe = Recipe(settings, tmp_path_factory.mktemp("recipe"))
    recipe.tokenizer_folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(miniature.folder("target") / name, recipe.tokenizer_folder)
    recipe.make_target()
    recipe.make_continuations()
    for kind in KINDS:
        recipe.make_drafter(kind)
    return recipe


def test_the_stages_yield_a_whole_pair(finished: Recipe) -> None:
    assert sorted(path.name for path in finished.pair_folder.iterdir()) == ["dflash", "dspine", "target"]


def test_the_pair_is_evaluated_on_every_task(finished: Recipe) -> None:
    rows = list(finished.evaluate(count=2, seed=1, max_new_tokens=6))
    assert [row.split(" | ")[0].strip("| ") for row in rows[2:-2]] == [
        "arithmetic",
        "code",
        "tools",
        "prose",
        "chat",
        "pooled",
    ]


def test_a_stage_that_comes_too_early_is_refused(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="run the target stage first"):
        Recipe(settings, tmp_path).make_continuations()


def test_finished_stages_are_not_repeated(finished: Recipe) -> None:
    weights = finished.pair_folder / "target" / "model.safetensors"
    before, log = weights.read_bytes(), (finished.folder / "target" / "log.txt").read_text()
    finished.make_target()
    assert weights.read_bytes() == before
    assert (finished.folder / "target" / "log.txt").read_text() == log


def test_the_sweep_compares_every_rate(finished: Recipe) -> None:
    rows = list(finished.sweep("dflash"))
    assert [row.split(" | ")[0].strip("| ") for row in rows[2:]] == ["0.5", "2"]


def test_a_target_alone_is_evaluated_too(finished: Recipe, settings: Settings, tmp_path: Path) -> None:
    alone = Recipe(settings, tmp_path)
    shutil.copytree(finished.tokenizer_folder, alone.tokenizer_folder)
    shutil.copytree(finished.pair_folder / "target", alone.pair_folder / "target")
    rows = list(alone.evaluate(count=1, seed=1, max_new_tokens=1))
    assert rows[0] == "| task | right | tokens |"
    assert {row.count("|") for row in rows[:-2]} == {4}


def test_a_damaged_tokenizer_is_refused_by_name(settings: Settings, tmp_path: Path) -> None:
    recipe = Recipe(settings, tmp_path)
    recipe.tokenizer_folder.mkdir()
    (recipe.tokenizer_folder / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"cannot read .*tokenizer\.json"):
        recipe.make_target()


def test_the_pair_is_installed_whole(finished: Recipe, tmp_path: Path) -> None:
    (tmp_path / "dspine").mkdir()
    (tmp_path / "dspine" / "of_an_earlier_pair").touch()
    finished.install(tmp_path)
    for part in ("target", *KINDS):
        names = {path.name for path in (finished.pair_folder / part).iterdir()}
        assert names == {path.name for path in (tmp_path / part).iterdir()}


def test_half_a_pair_is_not_installed(finished: Recipe, settings: Settings, tmp_path: Path) -> None:
    half = Recipe(settings, tmp_path / "half")
    shutil.copytree(finished.pair_folder / "target", half.pair_folder / "target")
    with pytest.raises(CheckpointError, match="lacks dspine, dflash"):
        half.install(tmp_path / "package")
    assert not (tmp_path / "package").exists()
