from __future__ import annotations

from typing import Any

import pytest

from dspine_cluster.bench import acceptance
from dspine_cluster.bench.acceptance import AcceptanceSettings, PromptRun, TaskRun, run_acceptance
from dspine_cluster.config import VerifierConfig
from dspine_cluster.errors import ConfigError
from dspine_cluster.types import Usage


def prompt(*token_ids: int, rounds: int) -> PromptRun:
    return PromptRun(token_ids, Usage(num_rounds=rounds), first_token_s=0.5, seconds=1.0)


ENDED_AT_ONCE = prompt(7, rounds=0)
RUNS = {
    "none": TaskRun([prompt(1, 2, 3, rounds=2), ENDED_AT_ONCE], 4.0, [0.0, 0.0], [0.0, 0.0]),
    "dspine": TaskRun([prompt(1, 2, 3, rounds=1), ENDED_AT_ONCE], 2.0, [4.0, 0.0], [3.0, 0.0]),
    "dflash": TaskRun([prompt(1, 2, 9, rounds=2), ENDED_AT_ONCE], 8.0, [4.0, 4.0], [2.0, 1.0]),
}


def report_of(
    runs: dict[str, TaskRun], monkeypatch: pytest.MonkeyPatch, temperature: float = 0.0
) -> dict[str, Any]:
    """The report on one task whose runs are given."""
    monkeypatch.setattr(acceptance, "_run_drafter", lambda config, name, *_: {"chat": runs[name]})
    settings = AcceptanceSettings(("dspine", "dflash"), temperature, concurrency=1, max_tokens=3)
    return run_acceptance(VerifierConfig(), settings, {"chat": [[5], [6]]}, lambda name, task: None)


def test_texts_that_are_not_plain_decoding_s_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    results = report_of(RUNS, monkeypatch)["results"]
    assert [row["drafter"] for row in results] == ["none", "dspine", "dflash"]
    assert [row["greedy_mismatches"] for row in results] == [0, 0, 1]


def test_sampled_texts_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    results = report_of(RUNS, monkeypatch, temperature=1.0)["results"]
    assert {row["greedy_mismatches"] for row in results} == {None}


def test_the_first_token_belongs_to_no_round_and_yet_to_the_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    row = report_of(RUNS, monkeypatch)["results"][1]
    assert (row["rounds"], row["committed_tokens"], row["acceptance_length"]) == (1, 2, 2.0)
    assert (row["tokens_per_s"], row["speedup_over_none"]) == (2.0, 2.0)


def test_positions_that_were_never_verified_have_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = [row["accepted_per_position"] for row in report_of(RUNS, monkeypatch)["results"]]
    assert rates == [[None, None], [0.75, None], [0.5, 0.25]]


def test_prompts_without_a_round_make_no_interval_undefined(monkeypatch: pytest.MonkeyPatch) -> None:
    report = report_of(RUNS, monkeypatch)
    assert report["pooled"]["dspine"] == {"acceptance_length": 2.0, "ci95": [2.0, 2.0]}
    assert report["pooled_ratios"] == {"dspine/dflash": {"ratio": 2.0, "ci95": [2.0, 2.0]}}


def test_without_any_round_there_is_nothing_to_report(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {name: TaskRun([ENDED_AT_ONCE], 1.0, [0.0], [0.0]) for name in RUNS}
    with pytest.raises(ConfigError, match="take more --prompts"):
        report_of(runs, monkeypatch)
