from __future__ import annotations

from pathlib import Path

import pytest

from dspine_cluster.core.cost_model import CostModel
from dspine_cluster.engine.batch import PackedRows, Segment
from dspine_cluster.engine.pace import Pace
from dspine_cluster.engine.pace_file import read_pace
from dspine_cluster.errors import ConfigError

COSTS = CostModel(
    weights_s=0.2,
    token_s=0.03,
    cached_token_s=0.001,
    state_s=0.01,
    step_s=0.0,
    draft_s=0.1,
    draft_request_s=0.02,
)


class Time:
    """Passes only when somebody works or sleeps."""

    def __init__(self) -> None:
        self.now_s = 5.0

    def __call__(self) -> float:
        return self.now_s

    def pass_by(self, seconds: float) -> None:
        assert seconds > 0.0
        self.now_s += seconds


@pytest.mark.parametrize(
    ("segments", "taken_s"),
    [
        ([Segment([1, 2], 30, [0, 1], 0)], 0.2 + 0.01 + 0.032),
        ([Segment([1] * 8, 0, [0], 0), Segment([1] * 4, 4, [0], 1)], 0.36 + 0.02 + 0.016),
    ],
)
def test_a_pass_takes_what_the_costs_say(segments: list[Segment], taken_s: float) -> None:
    time = Time()
    with Pace(COSTS, time, time.pass_by).passing(PackedRows.of(segments)):
        time.pass_by(0.05)
    assert time.now_s - 5.0 == pytest.approx(taken_s)


def test_drafts_take_what_the_costs_say() -> None:
    time = Time()
    with Pace(COSTS, time, time.pass_by).drafting(3):
        time.pass_by(0.05)
    assert time.now_s - 5.0 == pytest.approx(0.16)


def test_a_step_that_takes_longer_is_not_held_up() -> None:
    time = Time()
    with Pace(COSTS, time, time.pass_by).drafting(3):
        time.pass_by(0.7)
    assert time.now_s - 5.0 == pytest.approx(0.7)


def test_without_a_file_there_is_no_pace() -> None:
    assert read_pace(None) is None


@pytest.mark.parametrize(
    "text",
    [
        "passes_s: 1",
        "weights_s: long",
        "[1, 2]",
        "a: b: c",
        "weights_s: -1",
        "weights_s: .nan",
        "a: 2026-99-99",
    ],
)
def test_what_is_no_cost_model_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "pace.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError):
        read_pace(str(path))


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pace.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot read"):
        read_pace(str(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        read_pace(str(tmp_path / "nowhere.yaml"))
