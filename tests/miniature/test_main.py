from pathlib import Path

import pytest
from typer.testing import CliRunner

from dspine_cluster import miniature
from dspine_cluster.miniature import __main__ as command
from dspine_cluster.miniature import pipeline
from dspine_cluster.miniature.pipeline import Recipe
from dspine_cluster.miniature.settings import TINY


def test_every_stage_has_a_command() -> None:
    shown = CliRunner().invoke(command.app, ["--help"]).output
    for stage in ("tokenizer", "target", "continuations", "sweep", "drafter", "evaluate", "install"):
        assert stage in shown


def test_steps_reach_the_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[int] = []
    monkeypatch.setattr(Recipe, "make_target", lambda recipe: seen.append(recipe.settings.target.steps))
    result = CliRunner().invoke(command.app, ["target", "--folder", str(tmp_path), "--steps", "7"])
    assert result.exit_code == 0
    assert seen == [7]


def test_the_rate_reaches_the_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[float] = []
    monkeypatch.setattr(
        Recipe, "make_drafter", lambda recipe, kind, start: seen.append(recipe.settings.drafter.rate)
    )
    command_line = ["drafter", "dspine", "--folder", str(tmp_path), "--rate", "0.5"]
    assert CliRunner().invoke(command.app, command_line).exit_code == 0
    assert seen == [0.5]


def test_the_folder_to_start_from_reaches_the_training(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[Path | None] = []
    monkeypatch.setattr(Recipe, "make_drafter", lambda recipe, kind, start: seen.append(start))
    command_line = ["drafter", "dflash", "--folder", str(tmp_path), "--start", str(tmp_path / "earlier")]
    assert CliRunner().invoke(command.app, command_line).exit_code == 0
    assert seen == [tmp_path / "earlier"]


def test_installing_copies_the_pair(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recipe = Recipe(TINY, tmp_path / "runs")
    for part in ("target", *pipeline.KINDS):
        (recipe.pair_folder / part).mkdir(parents=True)
        (recipe.pair_folder / part / "config.json").write_text(part)
    monkeypatch.setattr(miniature, "PAIR_FOLDER", tmp_path / "package")
    result = CliRunner().invoke(command.app, ["install", "--folder", str(tmp_path / "runs")])
    assert result.exit_code == 0
    assert (tmp_path / "package" / "dspine" / "config.json").read_text() == "dspine"
