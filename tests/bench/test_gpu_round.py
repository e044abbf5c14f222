"""The GPU measurement, on the CPU at tiny dimensions."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from dspine_cluster.bench import gpu_run
from dspine_cluster.bench.gpu_checks import Check, Outcome, relative_error
from dspine_cluster.bench.gpu_models import Pair, PairConfig, build_pair, pair_config
from dspine_cluster.bench.gpu_parts import Part
from dspine_cluster.bench.gpu_report import CheckResult, PartResult, Report, gains
from dspine_cluster.bench.gpu_round import main

WHOLE = {"plain", "verify", "draft", "round"}
PIECES = {"injection", "transition", "walk", "ingest", "head", "accept greedy", "accept sampled"}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file = tmp_path_factory.mktemp("gpu_round") / "round.json"
    assert main(["--dry-run", "--commit", "abc", "--json", str(file)]) == 0
    content: dict[str, Any] = json.loads(file.read_text())
    return content


def test_a_dry_run_measures_every_part_of_both_pairs(written: dict[str, Any]) -> None:
    for model in ("27b", "8b"):
        parts = {(row["part"], row["num_requests"]) for row in written["results"] if row["model"] == model}
        assert parts == {(part, batch) for part in WHOLE | PIECES for batch in (3, 1)}
    assert all(row["eager_ms"] > 0.0 for row in written["results"])
    assert all(row["floor_ms"] > 0.0 for row in written["results"] if row["part"] != "walk")
    assert all(row["graph_ms"] > 0.0 for row in written["results"] if row["part"] in WHOLE)
    assert written["failed"] == written["dropped"] == []


def test_a_dry_run_checks_kernels_against_references(written: dict[str, Any]) -> None:
    assert {check["model"] for check in written["checks"]} == {"27b", "8b"}
    assert all(check["passed"] for check in written["checks"])


def test_a_report_says_where_and_what_ran(written: dict[str, Any]) -> None:
    assert written["environment"]["commit"] == "abc"
    assert written["environment"]["torch"] == torch.__version__
    assert written["ceilings"]["bytes_per_s"] > 0.0


def test_without_time_parts_are_dropped_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_run, "all_checks", lambda config, device: iter(()))
    settings = gpu_run.Settings.tiny(("8b",))
    report = gpu_run.run_gpu_round(
        gpu_run.Settings(("8b",), **{**_fields(settings), "budget_s": 0.0}), None, "abc"
    )
    assert report.results == []
    assert "8b round x 3" in report.dropped


def test_a_part_that_raises_is_reported_and_the_others_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def parts(bench: object, batches: object) -> list[Part]:
        from dspine_cluster.bench.gpu_floors import Work

        def fail() -> None:
            raise RuntimeError("no such kernel")

        return [Part("bad", 1, 1, Work(1.0), fail), Part("good", 1, 1, Work(1.0), lambda: None)]

    monkeypatch.setattr(gpu_run, "all_parts", parts)
    monkeypatch.setattr(gpu_run, "all_checks", lambda config, device: iter(()))
    report = gpu_run.run_gpu_round(gpu_run.Settings.tiny(("8b",)), None, "abc")
    assert report.failed == ["8b bad x 1: RuntimeError: no such kernel"]
    assert [result.part for result in report.results] == ["good"]
    assert not report.is_good


def result_of(part: str, num_requests: int, eager_ms: float, graph_ms: float | None) -> PartResult:
    return PartResult("27b", part, num_requests, num_requests, eager_ms, graph_ms, True, 1.0, "bytes", 3)


def test_the_gain_of_rounds_over_plain_steps_is_that_of_their_best_times() -> None:
    results = [
        result_of("plain", 8, 20.0, 14.0),
        result_of("round", 8, 21.0, 30.0),
        result_of("round", 1, 9.0, None),
    ]
    assert gains(results) == {("27b", 8): 1.5}


def test_a_pair_that_cannot_be_built_leaves_the_other_to_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(config: PairConfig, device: torch.device) -> Pair:
        if config.name == "27b":
            raise RuntimeError("out of memory")
        return build_pair(config, device)

    monkeypatch.setattr(gpu_run, "build_pair", build)
    monkeypatch.setattr(gpu_run, "all_checks", lambda config, device: iter(()))
    monkeypatch.setattr(gpu_run, "all_parts", lambda bench, batches: iter(()))
    report = gpu_run.run_gpu_round(gpu_run.Settings.tiny(("27b", "8b")), None, "abc")
    assert report.failed == ["27b: RuntimeError: out of memory"]


def test_it_is_no_success_when_a_check_fails() -> None:
    report = Report(None, {})
    report.add_check(CheckResult("27b", "gated_delta", 0.001, 0.01))
    assert report.is_good
    report.add_check(CheckResult("27b", "injection", math.nan, 0.01))
    assert not report.is_good


def test_the_worst_of_a_kernels_outputs_is_its_error_and_nan_passes_nothing() -> None:
    expected = torch.ones(3)
    assert relative_error([expected], [expected]) == 0.0
    assert relative_error([expected, 1.1 * expected], [expected, expected]) == pytest.approx(0.1)
    missing = torch.tensor([1.0, math.nan, 1.0])
    assert math.isnan(relative_error([missing, expected], [expected, expected]))
    assert math.isnan(relative_error([expected, missing], [expected, expected]))
    assert not Check("kernel", lambda: ([missing], [expected])).run("8b").passed


def test_a_kernel_that_raises_has_failed_its_check() -> None:
    def fail() -> tuple[Outcome, Outcome]:
        raise ValueError("out of shared memory")

    result = Check("kernel", fail).run("8b")
    assert not result.passed
    assert "out of shared memory" in result.message


def test_weights_are_bf16_and_passes_give_finite_numbers() -> None:
    pair = build_pair(pair_config("27b", tiny=True), torch.device("cpu"))
    dtypes = {name: p.dtype for name, p in pair.target.named_parameters()}
    assert all(dtype == torch.float32 for name, dtype in dtypes.items() if name.endswith("A_log"))
    assert all(dtype == torch.bfloat16 for name, dtype in dtypes.items() if not name.endswith("A_log"))
    assert all(p.isfinite().all() for module in (pair.target, pair.drafter) for p in module.parameters())


def test_nothing_is_imported_that_a_gpu_machine_may_lack() -> None:
    """The copied tree runs beside torch, triton and numpy alone."""
    missing = (
        "msgspec",
        "pydantic",
        "safetensors",
        "transformers",
        "tokenizers",
        "ray",
        "rich",
        "typer",
        "psutil",
    )
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({missing!r}));"
        "import dspine_cluster.bench.gpu_round, dspine_cluster.bench.gpu_run"
    )
    root = Path(__file__).parents[2]
    asked = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd=root
    )
    assert asked.returncode == 0, asked.stderr


def _fields(settings: gpu_run.Settings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in settings.__slots__ if name != "models"}
