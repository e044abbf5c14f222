"""Which form of an operation a tensor takes."""

from __future__ import annotations

import functools
import importlib.util

from torch import Tensor


def uses_triton(tensor: Tensor) -> bool:
    """Whether operations on `tensor` run as Triton kernels: on CUDA devices where Triton is installed."""
    return tensor.is_cuda and _has_triton()


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
