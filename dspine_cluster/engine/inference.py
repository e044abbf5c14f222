"""Functions that run without autograd."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

Params = ParamSpec("Params")
Result = TypeVar("Result")


def in_inference_mode(function: Callable[Params, Result]) -> Callable[Params, Result]:
    """As `torch.inference_mode()`, but a thread that is in it does not enter it again, which is slow: one that runs
    rounds enters it once for all."""

    @wraps(function)
    def wrapped(*args: Params.args, **kwargs: Params.kwargs) -> Result:
        if torch.is_inference_mode_enabled():
            return function(*args, **kwargs)
        with torch.inference_mode():
            return function(*args, **kwargs)

    return wrapped
