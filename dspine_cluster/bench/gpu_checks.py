"""Kernels beside their references, on a few requests at a model's own dimensions.

The kernel runs on the device in bf16, its reference on the CPU in fp32 from the same numbers. On the CPU every
operation is its reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from dspine_cluster.bench.gpu_report import CheckResult

T = TypeVar("T")
_CPU = torch.device("cpu")
_BF16_ERROR = 2e-2


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison."""

    kernel: str
    compare: Callable[[], tuple[Tensor, Tensor]]
    """What the kernel gave, and what its reference gives."""
    limit: float = _BF16_ERROR

    def run(self, model: str) -> CheckResult:
        """Compare; a kernel that raises has failed."""
        try:
            with torch.inference_mode():
                error = relative_error(*self.compare())
        except Exception as raised:  # whatever a compiler or driver says belongs into the report
            return CheckResult(model, self.kernel, math.nan, self.limit, f"{type(raised).__name__}: {raised}")
        return CheckResult(model, self.kernel, error, self.limit)


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Norm of the difference over the norm of what was expected, NaN where anything is NaN."""
    actual, expected = actual.cpu().double(), expected.cpu().double()
    return float(torch.linalg.vector_norm(actual - expected) / torch.linalg.vector_norm(expected))


def beside_reference(run: Callable[..., Tensor], *inputs: Any) -> Callable[[], tuple[Tensor, Tensor]]:
    """Compare what `run` gives for these inputs with what it gives for copies of them on the CPU in fp32."""

    def compare() -> tuple[Tensor, Tensor]:
        copies = [for_reference(value) for value in inputs]
        return run(*inputs), run(*copies)

    return compare


def for_reference(value: T) -> T:
    """A copy on the CPU, floats as fp32; tensors inside tuples and dataclasses too, anything else as it is."""
    copied: Any = value
    if isinstance(value, Tensor):
        copied = value.to(_CPU, copy=True)
        copied = copied.float() if copied.is_floating_point() else copied
    elif is_dataclass(value) and not isinstance(value, type):
        copied = replace(value, **{f.name: for_reference(getattr(value, f.name)) for f in fields(value)})
    elif isinstance(value, tuple) and hasattr(value, "_make"):
        copied = type(value)._make(map(for_reference, value))
    elif isinstance(value, torch.device):
        copied = _CPU
    return copied
