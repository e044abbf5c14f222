"""The benchmarks as a person runs them, on very few prompts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from dspine_cluster.cli import app

RUNNER = CliRunner()


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_acceptance_reports_every_task_and_drafter_without_mismatches(tmp_path: Path) -> None:
    report_file, picture = tmp_path / "out.json", tmp_path / "out.png"
    arguments = ["--task", "arithmetic,code", "--prompts", "2", "--max-tokens", "24"]
    result = RUNNER.invoke(
        app, ["bench", "acceptance", *arguments, "--json", str(report_file), "--plot", str(picture)]
    )
    assert result.exit_code == 0, result.output
    report = json.loads(report_file.read_text())
    rows = report["results"]
    assert {(row["task"], row["drafter"]) for row in rows} == {
        (task, drafter) for task in ("arithmetic", "code") for drafter in ("none", "dspine", "dflash")
    }
    for row in rows:
        assert row["greedy_mismatches"] == 0
        assert row["acceptance_length"] == row["committed_tokens"] / row["rounds"]
        if row["drafter"] == "none":
            assert row["acceptance_length"] == 1.0
    low, high = report["pooled"]["dspine"]["ci95"]
    assert 1.0 <= low <= high
    assert picture.stat().st_size > 1000


def test_sampled_runs_report_no_mismatches_because_there_is_no_truth(tmp_path: Path) -> None:
    report_file = tmp_path / "out.json"
    arguments = [
        "--task",
        "chat",
        "--prompts",
        "2",
        "--max-tokens",
        "12",
        "--temperature",
        "1",
        "--drafter",
        "dspine",
    ]
    result = RUNNER.invoke(
        app, ["bench", "acceptance", *arguments, "--concurrency", "2", "--json", str(report_file)]
    )
    assert result.exit_code == 0, result.output
    assert {row["greedy_mismatches"] for row in json.loads(report_file.read_text())["results"]} == {None}


def test_engine_compares_with_transformers(tmp_path: Path) -> None:
    report_file = tmp_path / "out.json"
    result = RUNNER.invoke(
        app, ["bench", "engine", "--batch", "2", "--tokens", "2", "--json", str(report_file)]
    )
    assert result.exit_code == 0, result.output
    (row,) = json.loads(report_file.read_text())["results"]
    assert row["batch"] == 2
    assert row["ratio"] == pytest.approx(row["tokens_per_s"] / row["tokens_per_s_transformers"])


@pytest.mark.parametrize("arguments", [["--drafter", "eagle"], ["--task", "poetry"]])
def test_unknown_drafters_and_tasks_are_refused(arguments: list[str]) -> None:
    result = RUNNER.invoke(app, ["bench", "acceptance", *arguments])
    assert result.exit_code == 2


def test_routing_reports_every_policy_in_every_cell(tmp_path: Path) -> None:
    report_file = tmp_path / "out.json"
    arguments = [
        "--loads",
        "1",
        "--caches",
        "50000,100000",
        "--duration",
        "9",
        "--processes",
        "1",
        "--no-live",
    ]
    result = RUNNER.invoke(app, ["bench", "routing", *arguments, "--json", str(report_file)])
    assert result.exit_code == 0, result.output
    assert "joint placement, worst cell" in result.output
    report = json.loads(report_file.read_text())
    assert {(row["policy"], row["cache"]) for row in report["simulated"]} == {
        (policy, cache)
        for policy in ("joint", "power_of_two", "sticky", "round_robin")
        for cache in (50_000, 100_000)
    }
    assert "live" not in report
    assert "not measured: live routing" in result.output


def test_turns_reports_what_later_turns_find_cached_and_the_texts_of_cold_runs(tmp_path: Path) -> None:
    report_file = tmp_path / "out.json"
    arguments = ["--conversations", "1", "--turns", "2", "--max-tokens", "16"]
    result = RUNNER.invoke(app, ["bench", "turns", *arguments, "--json", str(report_file)])
    assert result.exit_code == 0, result.output
    report = json.loads(report_file.read_text())
    assert [row["thinking"] for row in report["results"]] == [True, False]
    for row in [*report["results"], report["pooled"]]:
        assert row["texts_that_differ"] == 0
        assert 0 < row["cached_tokens"] < row["prompt_tokens"]
        assert row["min_cached_over_common_less_64"] >= 0.95
        assert row["acceptance_ratio"] == pytest.approx(1.0, abs=0.1)


def test_drafter_loss_reports_the_steps_before_and_after(tmp_path: Path) -> None:
    report_file = tmp_path / "out.json"
    arguments = ["--requests", "3", "--prompt-tokens", "48", "--steps", "2"]
    result = RUNNER.invoke(app, ["bench", "drafter-loss", *arguments, "--json", str(report_file)])
    assert result.exit_code == 0, result.output
    report = json.loads(report_file.read_text())
    assert len(report["plain"]["steps_s"]) == len(report["drafted_again"]["steps_s"]) == 2
    assert report["moving"]["plain_rounds"][0] > 0
    assert report["moving"]["step_max_s"] == max(report["moving"]["steps_s"])


def test_overhead_reports_both_sides_and_what_the_socket_adds(tmp_path: Path) -> None:
    report_file = tmp_path / "out.json"
    arguments = ["--requests", "2", "--rounds", "3", "--profile"]
    result = RUNNER.invoke(app, ["bench", "overhead", *arguments, "--json", str(report_file)])
    assert result.exit_code == 0, result.output
    report = json.loads(report_file.read_text())
    assert [(row["side"], row["requests"]) for row in report["results"]] == [("verifier", 2), ("drafter", 2)]
    for row in report["results"]:
        assert 0.0 < row["host_ms_median"] <= row["host_ms_p99"]
        assert 0.0 < row["host_ms_median_beside_sampling"] < row["host_ms_median_with_sampling"]
    (channel,) = report["channel"]
    assert channel["bytes"] == 8 * 16 * 5120 * 2
    assert channel["added_ms_median"] == channel["socket_ms_median"] - channel["local_ms_median"]
    assert "function calls" in result.output


def test_speedup_serves_both_and_finds_the_same_text(tmp_path: Path) -> None:
    report_file = tmp_path / "out.json"
    arguments = ["--task", "arithmetic", "--concurrency", "2", "--turns", "1", "--max-tokens", "12"]
    result = RUNNER.invoke(app, ["bench", "speedup", *arguments, "--json", str(report_file)])
    assert result.exit_code == 0, result.output
    (row,) = json.loads(report_file.read_text())["results"]
    assert (row["concurrency"], row["prompts"], row["greedy_mismatches"]) == (2, 20, 0)
    assert row["speedup"] == row["tokens_per_s"] / row["tokens_per_s_none"]
    assert 0.0 < row["prefill_share_none"] < 1.0
