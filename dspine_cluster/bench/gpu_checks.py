"""Kernels beside their references, on a few requests at a model's own dimensions.

The kernel runs on the device in bf16, its reference on the CPU in fp32 from the same numbers. On the CPU every
operation is its reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dspine_cluster.bench.gpu_report import CheckResult

CONTEXTS = (37, 0, 300)
"""Cached tokens of the requests of a check: a page begun, none, several shares of keys."""
VOCABULARY = 1000
_CPU = torch.device("cpu")
_BF16_ERROR = 2e-2

Outcome = Sequence[Tensor]


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison."""

    kernel: str
    compare: Callable[[], tuple[Outcome, Outcome]]
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


def relative_error(actual: Outcome, expected: Outcome) -> float:
    """Norm of the difference over the norm of what was expected, the largest of all; NaN where anything is NaN."""
    errors = []
    for own, other in zip(actual, expected, strict=True):
        wanted = other.cpu().double()
        difference = torch.linalg.vector_norm(own.cpu().double() - wanted)
        errors.append(difference / torch.linalg.vector_norm(wanted).clamp(min=1e-30))
    return float(torch.stack(errors).max())


def beside_reference(run: Callable[..., Outcome], *inputs: Any) -> Callable[[], tuple[Outcome, Outcome]]:
    """Compare what `run` gives for these inputs with what it gives for copies of them on the CPU in fp32."""

    def compare() -> tuple[Outcome, Outcome]:
        copies = [for_reference(value) for value in inputs]
        return run(*inputs), run(*copies)

    return compare


def for_reference(value: Any) -> Any:
    """A copy on the CPU, floats as fp32; tensors inside dataclasses too, anything else as it is."""
    if isinstance(value, Tensor):
        copied = value.to(_CPU, copy=True)
        return copied.float() if copied.is_floating_point() else copied
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: for_reference(getattr(value, f.name)) for f in fields(value)})
    return _CPU if isinstance(value, torch.device) else value


class Draws:
    """Random numbers on a device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._random = torch.Generator(device).manual_seed(2)

    def normal(self, *shape: int, std: float = 1.0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        numbers = torch.randn(shape, device=self.device, generator=self._random)
        return (numbers * std).to(dtype)

    def below(self, bound: int, *shape: int) -> Tensor:
        return torch.randint(bound, shape, device=self.device, generator=self._random)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, device=self.device, generator=self._random)

    def longs(self, *values: int) -> Tensor:
        return torch.tensor(values, device=self.device)
