"""Runs `gpu_round`: ceilings, then each pair's checks and parts for as long as there is time."""

from __future__ import annotations

import gc
import platform
import subprocess
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from dspine_cluster.bench.gpu_bench import Workbench
from dspine_cluster.bench.gpu_kernels import all_checks
from dspine_cluster.bench.gpu_models import build_pair, pair_config
from dspine_cluster.bench.gpu_parts import Part, all_parts
from dspine_cluster.bench.gpu_report import PartResult, Report
from dspine_cluster.bench.gpu_timing import Timer, measure_ceilings
from dspine_cluster.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Settings:
    """What is measured, and how long."""

    models: tuple[str, ...]
    budget_s: float = 330.0
    device: str = "cuda"
    is_tiny: bool = False
    batches: tuple[int, ...] = (8, 1, 32)
    """Requests at once; the first is measured first."""
    context_tokens: int = 2048
    part_s: float = 1.0
    """About what one figure may take."""
    max_runs: int = 50
    copy_bytes: int = 2**31
    matrix_size: int = 8192

    @classmethod
    def tiny(cls, models: tuple[str, ...]) -> Settings:
        """The same code in a few seconds on a CPU."""
        return cls(
            models,
            budget_s=120.0,
            device="cpu",
            is_tiny=True,
            batches=(3, 1),
            context_tokens=40,
            part_s=0.0,
            copy_bytes=2**20,
            matrix_size=64,
        )


def run_gpu_round(settings: Settings, json_file: Path | None, commit: str | None) -> Report:
    """Measure everything that the budget allows. Nothing that fails keeps the rest from being measured.

    Raises:
        ConfigError: there is no such device.
    """
    started_s = time.perf_counter()
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("this machine has no GPU that torch can use; --dry-run needs none")
    device = torch.device(settings.device)
    report = Report(json_file, _environment(device, commit))
    print(", ".join(f"{key} {value}" for key, value in report.environment.items()), flush=True)
    timer = Timer(device, part_s=settings.part_s, max_runs=settings.max_runs)
    ceilings = measure_ceilings(
        timer, device, copy_bytes=settings.copy_bytes, matrix_size=settings.matrix_size
    )
    report.set_ceilings(ceilings)
    for number, name in enumerate(settings.models, 1):
        until_s = started_s + settings.budget_s * number / len(settings.models)
        try:
            _check_pair(settings, name, device, report)
            _measure_pair(settings, name, device, timer, report, until_s)
        except Exception as error:  # such as too little memory: the other pair may still fit
            report.add_failure(name, error)
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    report.print_table()
    return report


def _check_pair(settings: Settings, name: str, device: torch.device, report: Report) -> None:
    for check in all_checks(pair_config(name, tiny=settings.is_tiny), device):
        report.add_check(check.run(name))


def _measure_pair(
    settings: Settings, name: str, device: torch.device, timer: Timer, report: Report, until_s: float
) -> None:
    pair = build_pair(pair_config(name, tiny=settings.is_tiny), device)
    bench = Workbench(
        pair, device, max_requests=max(settings.batches), context_tokens=settings.context_tokens
    )
    dropped = []
    with torch.inference_mode():
        for part in all_parts(bench, settings.batches):
            title = f"{name} {part.name} x {part.num_requests}"
            if time.perf_counter() + 2 * settings.part_s > until_s:
                dropped.append(title)
                continue
            try:
                report.add_result(_measure_part(part, name, timer, report))
            except Exception as error:  # a kernel that fails on this device must not cost the other figures
                report.add_failure(title, error)
    report.add_dropped(dropped)


def _measure_part(part: Part, model: str, timer: Timer, report: Report) -> PartResult:
    assert report.ceilings is not None
    eager = timer.measure(part.run)
    graphed = timer.measure(part.run_graphed) if part.run_graphed is not None else None
    return PartResult(
        model=model,
        part=part.name,
        num_requests=part.num_requests,
        num_tokens=part.num_tokens,
        eager_ms=eager.median_ms,
        graph_ms=graphed.median_ms if graphed is not None else None,
        is_recorded=part.is_recorded(),
        floor_ms=report.ceilings.floor_ms(part.work),
        limit=report.ceilings.limit(part.work),
        num_runs=eager.num_runs,
    )


def _environment(device: torch.device, commit: str | None) -> dict[str, Any]:
    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = None
    return {
        "card": torch.cuda.get_device_name(device) if device.type == "cuda" else "none (dry run)",
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": triton,
        "python": platform.python_version(),
        "commit": commit or _commit(),
    }


def _commit() -> str | None:
    """The checked-out commit; None outside a repository."""
    try:
        asked = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            check=False,
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
        )
    except OSError:
        return None
    return asked.stdout.strip() or None
