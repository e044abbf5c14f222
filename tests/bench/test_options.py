from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from dspine_cluster.bench import cli
from dspine_cluster.bench.options import choices, numbers


def test_names_are_taken_once_each() -> None:
    assert choices("dflash, none,dflash", ("none", "dflash"), "--drafter") == ["dflash", "none"]


@pytest.mark.parametrize("value", ["", "dspine,", "eagle", "dspine;none"])
def test_an_unknown_name_is_refused_with_the_known_ones(value: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not one of dspine, none"):
        choices(value, ("dspine", "none"), "--drafter")


def test_numbers_are_of_the_kind_asked_for() -> None:
    assert numbers("1, 8", int, "--batch") == (1, 8)
    assert numbers("0.5,3", float, "--loads") == (0.5, 3.0)


@pytest.mark.parametrize("value", ["", "1,", "a", "1.5"])
def test_what_is_no_number_is_refused(value: str) -> None:
    with pytest.raises(typer.BadParameter, match="is no list such as"):
        numbers(value, int, "--batch")


@pytest.mark.parametrize("value", ["0", "8,-1", "nan", "inf", "257"])
def test_numbers_out_of_range_are_refused(value: str) -> None:
    with pytest.raises(typer.BadParameter, match="positive and at most 256"):
        numbers(value, float, "--batch", most=256)


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["acceptance", "--drafter", ""], "--drafter"),
        (["acceptance", "--task", ""], "--task"),
        (["acceptance", "--prompts", "0"], "--prompts"),
        (["acceptance", "--concurrency", "1000"], "--concurrency"),
        (["acceptance", "--temperature", "nan"], "--temperature"),
        (["acceptance", "--max-tokens", "1"], "--max-tokens"),
        (["acceptance", "--drafter", "none", "--plot", "out.png"], "--plot"),
        (["acceptance", "--json", "no-such-folder/out.json"], "--json"),
        (["acceptance", "--plot", "no-such-folder/out.png"], "--plot"),
        (["acceptance", "--json", "."], "--json"),
        (["engine", "--batch", "1,0"], "--batch"),
        (["engine", "--tokens", "5000"], "--tokens"),
        (["engine", "--json", "no-such-folder/out.json"], "--json"),
        (["routing", "--loads", "-1"], "--loads"),
        (["routing", "--caches", "big"], "--caches"),
    ],
)
def test_what_cannot_be_measured_is_refused_by_name_before_anything_is(
    arguments: list[str], option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 2
    assert option in result.output
    assert not list(tmp_path.iterdir())


def test_a_file_that_can_be_written_is_left_as_it_is_until_then(tmp_path: Path) -> None:
    earlier = tmp_path / "out.json"
    earlier.write_text("earlier")
    for name in ("out.json", "new.json"):
        arguments = ["engine", "--json", str(tmp_path / name), "--batch", "0"]
        assert "--batch" in CliRunner().invoke(cli.app, arguments).output
    assert earlier.read_text() == "earlier"
    assert list(tmp_path.iterdir()) == [earlier]
