from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dspine_cluster import miniature
from dspine_cluster.miniature import __main__ as command
from dspine_cluster.miniature.pipeline import Recipe
from dspine_cluster.miniature.settings import Settings

RUNNER = CliRunner()


def test_every_stage_has_a_command() -> None:
    shown = RUNNER.invoke(command.app, ["--help"]).output
    for stage in ("tokenizer", "target", "continuations", "sweep", "drafter", "evaluate", "install"):
        assert stage in shown


def test_steps_reach_the_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[int] = []
    monkeypatch.setattr(Recipe, "make_target", lambda recipe: seen.append(recipe.settings.target.steps))
    result = RUNNER.invoke(command.app, ["target", "--folder", str(tmp_path), "--steps", "7"])
    assert result.exit_code == 0
    assert seen == [7]


def test_the_options_of_a_drafter_reach_its_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[object] = []

    def train(recipe: Recipe, kind: str, start: Path | None) -> None:
        seen.extend((kind, recipe.settings.drafter.rate, recipe.settings.drafter.steps, start))

    monkeypatch.setattr(Recipe, "make_drafter", train)
    options = ["--rate", "0.5", "--steps", "9", "--start", str(tmp_path / "earlier")]
    assert RUNNER.invoke(command.app, ["drafter", "dflash", *options]).exit_code == 0
    assert seen == ["dflash", 0.5, 9, tmp_path / "earlier"]


def test_installing_copies_the_pair_into_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[Path] = []
    monkeypatch.setattr(Recipe, "install", lambda recipe, folder: seen.append(folder))
    assert RUNNER.invoke(command.app, ["install", "--folder", str(tmp_path)]).exit_code == 0
    assert seen == [miniature.PAIR_FOLDER]


@pytest.mark.parametrize(
    "arguments",
    [
        ["target", "--steps", "0"],
        ["drafter", "dspine", "--rate", "nan"],
        ["drafter", "dspine", "--rate", "0"],
        ["drafter", "eagle"],
        ["continuations", "--first", "-1"],
        ["continuations", "--stride", "0"],
        ["evaluate", "--count", "0"],
    ],
)
def test_values_out_of_range_are_refused(arguments: list[str], tmp_path: Path) -> None:
    assert RUNNER.invoke(command.app, [*arguments, "--folder", str(tmp_path)]).exit_code == 2
    assert not list(tmp_path.iterdir())


def test_a_mistake_is_one_line_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], settings: Settings
) -> None:
    (tmp_path / "file").touch()
    for arguments, reason in (
        (["continuations", "--folder", str(tmp_path)], "run the target stage first"),
        (["continuations", "--first", "2", "--stride", "2"], "must be below --stride"),
        (["install", "--folder", str(tmp_path)], "lacks target, dspine, dflash"),
        (["tokenizer", "--folder", str(tmp_path / "file")], "cannot write"),
    ):
        monkeypatch.setattr(sys, "argv", ["miniature", *arguments])
        monkeypatch.setattr(command, "Settings", lambda: settings)
        with pytest.raises(SystemExit) as ended:
            command.main()
        assert ended.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert reason in line


def test_it_runs_as_a_module_from_any_folder(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "dspine_cluster.miniature", "evaluate"],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert "run the target stage first" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())
