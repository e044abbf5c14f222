"""A kernel at one of its production shapes, for compilation without a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class AotSpec:
    """What a launcher would pass, said in types."""

    name: str
    """Operation, kernel and shape, such as `gated_delta.verify 27B`; unique."""
    kernel: Any
    """The `@triton.jit` function."""
    signature: Mapping[str, str]
    """Argument to type (`*bf16`, `*fp32`, `*i64`, `i32`, `fp32`) for all arguments but the constants."""
    constexprs: Mapping[str, Any]
    """Argument to value for every `tl.constexpr`."""
    num_warps: int = 4
    num_stages: int = 1
    divisible_by_16: tuple[str, ...] = ()
    """Integers that are multiples of 16 at this shape, such as strides of rows. Pointers are taken as aligned."""
    max_shared_bytes: int = 227 * 1024
    """Bound on shared memory a program, beside the architecture's own."""
    max_spill_bytes: int = 0
    """Bound on registers spilled to local memory, bytes a thread."""
