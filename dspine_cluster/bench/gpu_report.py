"""What `gpu_round` found: printed and written after every part, so that little is lost when it is killed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dspine_cluster.bench.gpu_floors import Ceilings


@dataclass(frozen=True, slots=True)
class PartResult:
    """One part's medians beside its floor."""

    model: str
    part: str
    num_requests: int
    num_tokens: int
    eager_ms: float
    graph_ms: float | None
    """Padded to a bucket; None where there is nothing to record."""
    is_recorded: bool
    """Whether that was a replay of a recorded graph."""
    floor_ms: float
    limit: str
    """Which ceiling sets the floor: bytes or operations."""
    num_runs: int

    @property
    def best_ms(self) -> float:
        """With or without graphs, whichever is less."""
        return self.eager_ms if self.graph_ms is None else min(self.eager_ms, self.graph_ms)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A kernel beside its reference, both on the same inputs."""

    model: str
    kernel: str
    error: float
    """Norm of the difference over the norm of the reference; NaN where the kernel did not run."""
    limit: float
    message: str = ""

    @property
    def passed(self) -> bool:
        return self.error <= self.limit


_COLUMNS = ("model", "part", "requests", "tokens", "eager ms", "graph ms", "floor ms", "x floor", "limit")


@dataclass
class Report:
    """Everything that was found so far."""

    file: Path | None
    environment: dict[str, Any]
    ceilings: Ceilings | None = None
    checks: list[CheckResult] = field(default_factory=list)
    results: list[PartResult] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    """Parts that raised, with the error."""
    dropped: list[str] = field(default_factory=list)
    """Parts that time did not suffice for."""

    @property
    def is_good(self) -> bool:
        return not self.failed and all(check.passed for check in self.checks)

    def set_ceilings(self, ceilings: Ceilings) -> None:
        self.ceilings = ceilings
        _say(
            f"ceilings: copy {ceilings.bytes_per_s / 1e12:.3g} TB/s, "
            f"bf16 product {ceilings.operations_per_s / 1e12:.3g} TFLOP/s"
        )
        self.write()

    def add_check(self, check: CheckResult) -> None:
        self.checks.append(check)
        verdict = "ok" if check.passed else "FAILED"
        _say(
            f"check {check.model} {check.kernel}: error {check.error:.2e}, at most {check.limit:.0e}: {verdict} "
            f"{check.message}".rstrip()
        )
        self.write()

    def add_result(self, result: PartResult) -> None:
        self.results.append(result)
        _say("  ".join(_row(result)))
        self.write()

    def add_failure(self, part: str, error: BaseException) -> None:
        self.failed.append(f"{part}: {type(error).__name__}: {error}")
        _say(f"failed: {self.failed[-1]}")
        self.write()

    def add_dropped(self, parts: Sequence[str]) -> None:
        self.dropped += parts
        if parts:
            _say(f"dropped for want of time: {', '.join(parts)}")
        self.write()

    def write(self) -> None:
        if self.file is None:
            return
        written = {
            "environment": self.environment,
            "ceilings": asdict(self.ceilings) if self.ceilings else None,
            "checks": [asdict(check) | {"passed": check.passed} for check in self.checks],
            "results": [asdict(result) for result in self.results],
            "failed": self.failed,
            "dropped": self.dropped,
        }
        self.file.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")

    def print_table(self) -> None:
        """All figures in aligned columns."""
        rows = [_COLUMNS, *map(_row, self.results)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        _say("")
        for row in rows:
            texts = [text.ljust(width) for text, width in zip(row[:2], widths[:2], strict=True)]
            numbers = [text.rjust(width) for text, width in zip(row[2:], widths[2:], strict=True)]
            _say("  ".join([*texts, *numbers]))
        if any(result.graph_ms is not None and not result.is_recorded for result in self.results):
            _say("* padded, but not recorded")
        for (model, num_requests), steps in gains(self.results).items():
            _say(
                f"{model} x {num_requests}: a round takes as long as {steps:.2f} plain steps, so with an acceptance "
                f"length of 6 it gives {6 / steps:.2f} times their tokens"
            )


def gains(results: Sequence[PartResult]) -> dict[tuple[str, int], float]:
    """How many plain steps a round takes, by model and requests: the acceptance length from which it pays."""
    plain = {(r.model, r.num_requests): r.best_ms for r in results if r.part == "plain"}
    rounds = {(r.model, r.num_requests): r.best_ms for r in results if r.part == "round"}
    return {key: rounds[key] / plain[key] for key in rounds if key in plain}


def _row(result: PartResult) -> tuple[str, ...]:
    graph_ms = result.graph_ms
    return (
        result.model,
        result.part,
        str(result.num_requests),
        str(result.num_tokens),
        f"{result.eager_ms:.3f}",
        "-" if graph_ms is None else f"{graph_ms:.3f}{'' if result.is_recorded else '*'}",
        f"{result.floor_ms:.3f}",
        f"{result.best_ms / result.floor_ms:.2f}" if result.floor_ms else "-",
        result.limit,
    )


def _say(text: str) -> None:
    print(text, flush=True)
