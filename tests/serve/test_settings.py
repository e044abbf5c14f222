from __future__ import annotations

from pathlib import Path

import yaml
from typer.testing import CliRunner

from dspine_cluster.config import ModelSource
from dspine_serve.args import AppArgs
from dspine_serve.cli import app
from dspine_serve.settings import all_settings, as_markdown

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_the_page_of_settings_says_what_the_code_does() -> None:
    told = "`dspine config --markdown > docs/settings.md` writes it anew"
    assert PAGE.read_text() == as_markdown(all_settings()), told


def test_every_setting_has_a_meaning_and_every_number_a_unit() -> None:
    settings = all_settings()
    assert all(setting.meaning for setting in settings)
    numbers = {s.key for s in settings if isinstance(yaml.safe_load(s.default), int | float) and not s.unit}
    booleans = {
        "engine.prefix_cache",
        "drafters.listens_on_tcp",
        "verifiers.autoscaled",
        "drafters.autoscaled",
    }
    assert numbers == booleans


def test_defaults_are_those_of_the_code() -> None:
    """Told in YAML, they make the arguments that nothing makes."""
    values: dict[str, object] = {}
    for setting in all_settings():
        *parts, name = setting.key.split(".")
        part = values
        for key in parts:
            part = part.setdefault(key, {})  # type: ignore[assignment]
        part[name] = yaml.safe_load(setting.default)
    assert AppArgs.model_validate(values) == AppArgs()


def test_a_default_of_its_own_part_is_told() -> None:
    defaults = {setting.key: setting.default for setting in all_settings()}
    args = AppArgs()
    assert defaults["verifiers.num_cpus"] == str(args.verifiers.num_cpus) != defaults["drafters.num_cpus"]
    assert ModelSource(defaults["drafter"]) == args.drafter


def test_config_prints_every_setting_uncut_however_narrow_the_terminal() -> None:
    lines = CliRunner().invoke(app, ["config"], env={"COLUMNS": "30"}).output.splitlines()
    for setting in all_settings():
        assert f"{setting.key} = {setting.default} {setting.unit}".rstrip() in lines


def test_meanings_call_nothing_what_yaml_calls_it() -> None:
    meanings = {setting.key: setting.meaning for setting in all_settings()}
    assert "null sizes it" in meanings["engine.pool_tokens"]


def test_config_writes_the_page() -> None:
    assert CliRunner().invoke(app, ["config", "--markdown"]).output == PAGE.read_text()
